"""All runs below a folder as series of a case and metric, and where these change."""

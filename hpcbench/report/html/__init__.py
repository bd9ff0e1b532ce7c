"""A report as one HTML file: no network, no script from elsewhere, readable without JavaScript."""

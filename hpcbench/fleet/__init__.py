"""Many nodes and many weeks: an optional part; nothing outside imports it."""

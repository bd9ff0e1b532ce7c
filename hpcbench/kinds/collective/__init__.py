"""Kind ``collective``: one collective operation on one buffer."""

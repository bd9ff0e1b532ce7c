"""The collectives: one file each, the data they move, and how the result is checked."""

"""Where ranks write, and how traces reach rank 0."""

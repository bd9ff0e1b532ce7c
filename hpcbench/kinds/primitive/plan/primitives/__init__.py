"""The distributed primitives: one file each."""

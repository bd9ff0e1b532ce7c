"""Files that other programs read, written from results: one module for a family of formats."""

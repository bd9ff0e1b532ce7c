"""The functions for users' own programs: measure a function, read results."""

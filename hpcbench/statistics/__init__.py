"""Pure functions of samples."""

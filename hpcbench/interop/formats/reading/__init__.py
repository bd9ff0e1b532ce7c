"""Readers of other programs' files: a line at a time, a table at a time, whatever their length."""

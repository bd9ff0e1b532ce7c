"""Blocks of collectives become cases. No torch."""

"""Recorded jobs become cases: which calls, on which ranks, after which gaps. No torch."""

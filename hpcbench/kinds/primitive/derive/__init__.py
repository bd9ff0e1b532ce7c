"""Rates of primitives, and what they are compared with."""

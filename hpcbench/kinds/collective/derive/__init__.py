"""Bandwidths of collectives."""

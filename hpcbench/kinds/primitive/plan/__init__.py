"""Blocks of primitives become cases: shapes, traffic, flops. No torch."""

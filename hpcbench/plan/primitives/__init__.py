"""The distributed primitives as plans know them: shapes, traffic, flops. No torch."""

"""Blocks of trainings become cases: models, strategies, flops, memory. No torch."""

"""Training as plans know it: models, strategies, flops, memory. No torch."""

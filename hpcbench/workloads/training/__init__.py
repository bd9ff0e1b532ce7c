"""Training steps: models, the strategies that spread them over ranks, data, phases, parity."""

"""Training steps as a worker runs them: models, strategies, data, phases, parity."""

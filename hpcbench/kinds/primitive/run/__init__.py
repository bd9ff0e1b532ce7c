"""The primitives as a worker runs them: inputs, expected results, implementations."""

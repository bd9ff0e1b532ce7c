"""The distributed primitives: inputs and expected results, and the implementations that run."""

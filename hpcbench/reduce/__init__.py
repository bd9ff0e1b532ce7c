"""Rank 0 validates and stacks all ranks' traces into results.h5."""

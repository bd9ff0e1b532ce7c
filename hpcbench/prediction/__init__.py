"""Predictions for numbers of ranks that nobody measured (docs/predict.md)."""

"""The models that are trained, with random weights from a seed."""

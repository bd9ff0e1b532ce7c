"""Rates, exposure and scaling of training steps."""

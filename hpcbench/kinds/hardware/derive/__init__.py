"""Rates of the machine."""

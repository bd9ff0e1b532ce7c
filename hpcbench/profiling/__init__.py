"""Profiled samples: how they are taken, put together, and compared with the measured ones."""

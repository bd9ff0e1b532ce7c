"""Pure functions of results: bandwidth now; skew, scaling and comparison later."""

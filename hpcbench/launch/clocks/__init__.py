"""How the clocks of ranks are compared."""

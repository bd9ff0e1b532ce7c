"""The collectives as a worker runs them."""

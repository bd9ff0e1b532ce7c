"""The collectives as a worker runs them: one file each."""

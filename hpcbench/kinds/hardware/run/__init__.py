"""What the tests measure, in a worker."""

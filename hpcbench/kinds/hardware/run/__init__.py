"""The tests of the machine as a worker runs them."""

"""Cases of tests of the machine."""

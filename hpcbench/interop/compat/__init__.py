"""Programs under the names, and with the options and texts, of other benchmarks."""

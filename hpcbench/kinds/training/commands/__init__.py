"""Commands of kind training: what a model is, and what a throughput of it is worth."""

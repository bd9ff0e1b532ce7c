"""Console, plots, summaries: what people and other programs read."""

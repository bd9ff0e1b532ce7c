"""How a model is trained on several ranks, with torch's own parallelism."""

"""Kind ``training``: optimizer steps of a model that is spread over the ranks."""

"""Shared by kinds: the place of a rank, dtypes, data, result checks, sizes, bandwidths."""

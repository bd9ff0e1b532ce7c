"""What each primitive starts from on a rank, and what must come out: one file a primitive."""

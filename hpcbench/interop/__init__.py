"""What other programs read, wrote and called: one optional part; nothing outside imports it."""

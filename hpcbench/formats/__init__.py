"""Files of other programs: what they read is written from results, what they wrote is read."""

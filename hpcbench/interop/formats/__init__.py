"""Files of other programs: some are written from results, others are read."""

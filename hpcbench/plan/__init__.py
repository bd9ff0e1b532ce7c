"""The configuration becomes an ordered tuple of cases with stable ids."""

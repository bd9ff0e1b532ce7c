"""Kind ``primitive``: matrix products with the communication that belongs to them."""

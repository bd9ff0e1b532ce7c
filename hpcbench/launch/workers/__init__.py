"""How a supervisor starts workers, watches them and ends them."""

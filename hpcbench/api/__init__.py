"""What programs of others call: measure a function, read results."""

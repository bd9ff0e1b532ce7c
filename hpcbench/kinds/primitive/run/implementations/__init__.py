"""The ways to do a primitive: one file an implementation, none of which times or prints."""

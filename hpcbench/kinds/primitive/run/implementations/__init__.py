"""The ways to do a primitive: none of them times or prints."""

"""Tables and charts of primitives."""

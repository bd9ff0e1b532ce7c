"""Tables and charts of collectives."""

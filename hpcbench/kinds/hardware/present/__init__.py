"""Tables and charts of the machine."""

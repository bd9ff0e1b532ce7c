"""Tables and charts of what trainings hold."""

"""Tables and charts of trainings."""

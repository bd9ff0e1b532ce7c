"""``hpcbench soak``: one sweep again and again, for hours or days, in a bounded record."""

"""Sweep files of other tools, translated into ours before anything else looks at them."""

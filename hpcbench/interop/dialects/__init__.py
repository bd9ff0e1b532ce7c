"""Sweep files of other tools, translated into ours before anything else reads them."""

"""``hpcbench gen-config acceptance``: the acceptance test of a machine as a folder."""

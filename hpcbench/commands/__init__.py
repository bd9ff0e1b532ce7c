"""The commands: what each one takes on the command line, and which part of hpcbench it calls."""

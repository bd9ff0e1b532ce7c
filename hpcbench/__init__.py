"""hpcbench: an MPI-launched benchmark toolkit for distributed deep learning."""

__version__ = "0.1.0"

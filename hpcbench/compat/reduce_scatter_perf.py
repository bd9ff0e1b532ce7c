"""``python -m hpcbench.compat.reduce_scatter_perf``: what nccl-tests' program of this name does."""

from hpcbench.compat.program import main

if __name__ == "__main__":
    main("reduce_scatter_perf")

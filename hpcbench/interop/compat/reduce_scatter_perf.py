"""``python -m hpcbench.compat.reduce_scatter_perf``: runs as nccl-tests' program of this name."""

from hpcbench.interop.compat.program import main

if __name__ == "__main__":
    main("reduce_scatter_perf")

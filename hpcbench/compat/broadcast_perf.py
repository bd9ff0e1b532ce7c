"""``python -m hpcbench.compat.broadcast_perf``: what nccl-tests' program of this name does."""

from hpcbench.compat.program import main

if __name__ == "__main__":
    main("broadcast_perf")

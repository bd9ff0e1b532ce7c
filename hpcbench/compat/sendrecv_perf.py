"""``python -m hpcbench.compat.sendrecv_perf``: what nccl-tests' program of this name does."""

from hpcbench.compat.program import main

if __name__ == "__main__":
    main("sendrecv_perf")

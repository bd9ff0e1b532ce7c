"""``python -m hpcbench.compat.all_gather_perf``: runs as nccl-tests' program of this name."""

from hpcbench.interop.compat.program import main

if __name__ == "__main__":
    main("all_gather_perf")

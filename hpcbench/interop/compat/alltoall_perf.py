"""``python -m hpcbench.compat.alltoall_perf``: runs as nccl-tests' program of this name."""

from hpcbench.interop.compat.program import main

if __name__ == "__main__":
    main("alltoall_perf")

"""The environment of a worker: an allow-list, because a leak can crash the MPI process.

A child that inherits an MPI library's variables and touches MPI can corrupt its parent's memory.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping

from hpcbench.config.names import PASSED_ENV

READ_LATE = ("NCCL_*", "RCCL_*", "UCC_*", "UCX_*", "GLOO_*", "TORCH_NCCL_*", "FI_*")
"""Variables that libraries read when a communicator is made, so a forked worker can still set them;
any other is read when torch loads and needs a fresh template process."""


def worker_environment(
    environ: Mapping[str, str], pass_env: Iterable[str], defaults: Mapping[str, str],
) -> dict[str, str]:
    """Return the variables a worker starts with; ``defaults`` fill what is not set."""
    patterns = (*PASSED_ENV, *pass_env)
    kept = {name: value for name, value in environ.items()
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)}
    return {**defaults, **kept}


def split_by_load_time(
    env: Iterable[tuple[str, str]],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (needed when torch loads, settable in a forked worker) of a case's variables."""
    early: dict[str, str] = {}
    late: dict[str, str] = {}
    for name, value in env:
        target = late if any(fnmatch.fnmatchcase(name, p) for p in READ_LATE) else early
        target[name] = value
    return early, late

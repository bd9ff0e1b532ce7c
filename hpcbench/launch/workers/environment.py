"""The environment variables of a worker: an allow-list.

A child that inherits those of an MPI library and touches MPI can
corrupt its parent's memory.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Mapping, Sequence

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


def thread_variables(threads: int) -> dict[str, str]:
    """Return the variables that give a worker so many threads (`measure.allocation`)."""
    return {"OMP_NUM_THREADS": str(threads)}


def split_by_load_time(
    env: Sequence[tuple[str, str]],
) -> tuple[dict[str, str], dict[str, str]]:
    """Return (needed when torch loads, settable in a forked worker) of a case's variables."""
    late = {name: value for name, value in env
            if any(fnmatch.fnmatchcase(name, pattern) for pattern in READ_LATE)}
    return {name: value for name, value in env if name not in late}, late

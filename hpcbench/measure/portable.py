"""What Linux has and macOS has not, and what stands for it there."""

from __future__ import annotations

import os
import sys
import tempfile

_UNSUPERVISED = (
    "workers in processes of their own need Linux (pidfd_open, memfd_create, prctl and /proc): "
    "this is {platform}")


def own_cores() -> list[int]:
    """Return the cores that this process may run on; all where the system tells no affinity."""
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def shared_memory(name: str) -> int:
    """Return the descriptor of an empty file in memory, or of one on disk that has no name."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    with tempfile.TemporaryFile(prefix=name) as file:
        return os.dup(file.fileno())


def unsupervised() -> str | None:
    """Return why workers cannot be processes that a supervisor watches, or None if they can."""
    return None if sys.platform == "linux" else _UNSUPERVISED.format(platform=sys.platform)

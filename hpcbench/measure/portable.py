"""What Linux has and macOS has not, and what stands for it there."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
import tempfile

_PR_SET_PDEATHSIG = 1
_UNSUPERVISED = (
    "workers in processes of their own need Linux (pidfd_open, memfd_create, prctl and /proc): "
    "this is {platform}")


def own_cores(pid: int = 0) -> list[int]:
    """Return the cores that this or another process may run on; all where that is not told."""
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(ProcessLookupError):
            return sorted(os.sched_getaffinity(pid))
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


def die_with_parent(parent_pid: int) -> None:
    """Have the kernel kill this process when its parent ends; end at once if it already has.

    The signal is sent when the *thread* that started this process ends, so start from the main
    thread. A ``parent_pid`` of 0 is a parent that is not known. The kernel of macOS cannot do it.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if parent_pid and os.getppid() != parent_pid:
        os._exit(1)

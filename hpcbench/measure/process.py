"""What Linux has and macOS has not, and what stands for it there.

Python's garbage collector, kept out of what is timed and of imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import signal
import sys
import tempfile
from collections.abc import Iterator

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


_MANY_OBJECTS = 50_000
"""About those of two figures."""


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Collect now, and not again before the block ends; then as before."""
    enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


@contextlib.contextmanager
def no_collection_of_modules() -> Iterator[None]:
    """Collect nothing while modules are imported in the block, and never look at them again.

    Modules stay until the process ends. Looking through them again and again takes a seventh of an
    import of torch.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


@contextlib.contextmanager
def rare_collection() -> Iterator[None]:
    """Collect rarely while the block makes and drops many objects, as reading and drawing do.

    Looking for garbage after each 700 new objects takes a seventh of a report's time.
    """
    usual = gc.get_threshold()
    gc.set_threshold(_MANY_OBJECTS, *usual[1:])
    try:
        yield
    finally:
        gc.set_threshold(*usual)


def spare_what_is_loaded() -> None:
    """Have no later collection look at what is there now: at all of torch it takes 0.2 s."""
    gc.collect()
    gc.freeze()

"""Reading values that the kernel shows in /proc and /sys; None where it does not show one.

What Linux has and macOS has not, and what stands for it there.

Python's garbage collector, kept out of what is timed and of imports.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import re
import signal
import sys
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The files below ``root``. Paths are relative to it; nothing here raises."""

    root: Path = Path("/")

    def text(self, path: str, limit_bytes: int = _LIMIT_BYTES) -> str | None:
        """Return a file's beginning, decoded as Python does paths, which it may hold.

        The kernel makes up long files as they are read.
        """
        with suppress(OSError, ValueError), (self.root / path).open("rb") as stream:
            return os.fsdecode(stream.read(limit_bytes))
        return None

    def line(self, path: str) -> str | None:
        """Return the first line without surrounding space, None if it is empty."""
        text = self.text(path)
        return (text.splitlines() or [""])[0].strip() or None if text else None

    def number(self, path: str) -> int | None:
        """Return the whole number that the file holds."""
        line = self.line(path)
        return int(line) if line and re.fullmatch(r"-?[0-9]{1,19}", line) else None

    def choice(self, path: str) -> str | None:
        """Return the chosen word of ``always [madvise] never``."""
        line = self.line(path)
        match = re.search(r"\[([^\]]*)\]", line) if line else None
        return match[1] if match else line

    def fields(self, path: str) -> dict[str, str]:
        """Return the lines ``name: value`` or ``name=value`` of a file; empty if there is none."""
        text = self.text(path) or ""
        pairs = (re.split(r"\s*[:=]\s*", line, maxsplit=1) for line in text.splitlines())
        return {pair[0].strip(): pair[1].strip().strip('"') for pair in pairs if len(pair) == 2}

    def process_bytes(self, field: str) -> int | None:
        """Return a field of this process's status, such as ``VmHWM``, in bytes."""
        size = re.fullmatch(r"([0-9]+) kB", self.fields("proc/self/status").get(field, ""))
        return int(size[1]) * 1024 if size else None  # the kernel's kB are KiB

    def names(self, folder: str) -> list[str]:
        """Return the sorted names in a folder; empty if there is none."""
        with suppress(OSError, ValueError):
            return sorted(path.name for path in (self.root / folder).iterdir())
        return []

    def exists(self, path: str) -> bool:
        """Return whether there is such a file, as far as can be read."""
        with suppress(OSError, ValueError):
            return (self.root / path).exists()
        return False

    def target(self, path: str) -> str | None:
        """Return the last part of where a symbolic link points."""
        with suppress(OSError, ValueError):
            return (self.root / path).readlink().name or None
        return None


def cpu_list(text: str | None) -> list[int]:
    """Return the numbers of the kernel's list format, ``0-3,8``; empty for None or no list."""
    numbers: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if match:
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


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

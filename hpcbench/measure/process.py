"""Reading values that the kernel shows in /proc and /sys; None where it does not show one.

What Linux has and macOS has not, and what stands for it there.

Python's garbage collector, kept out of what is timed and of imports.

How quiet the core is that a rank runs on: how much of its time others take, and in which pieces.

`look_for_detours` reads the clock without pause and notes the gaps ("selfish detour": Beckman,
Iskra, Yoshii, Coghlan, Nataraj, "Benchmarking the effects of operating system interference on
extreme-scale parallel machines", Cluster Computing 11, 2008). `repeat_fixed_work` times equal
pieces of work ("fixed work quantum": Sottile and Minnich, CLUSTER 2004). All ranks of a node run
them at the same time, as they run the sweep; else ranks that share a core would not show it.
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
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from hpcbench.trace.schema import FixedWork, Noise

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
        with suppress(OSError, ValueError):
            return sorted(path.name for path in (self.root / folder).iterdir())
        return []

    def exists(self, path: str) -> bool:
        with suppress(OSError, ValueError):
            return (self.root / path).exists()
        return False

    def target(self, path: str) -> str | None:
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


Clock = Callable[[], int]

MIN_DETOUR_NS = 2000
"""A gap shorter than this is not counted, however fast the loop is: switching to another thread and
back costs about that much, while reading the clock itself may take a cache miss or two."""
_DETOUR_STEPS = 10
"""A gap is a detour from so many times the median step on, should the loop be slow."""
_CALIBRATION_STEPS = 2000
_PARTS = 10
"""Equal parts of a look, so that a rank can be compared with others part by part."""
_WORK_NS = 500_000
"""One piece of fixed work takes about so long: longer than an interrupt, shorter than the 1 to 4 ms
for which the scheduler lets another process run."""
_WORK_SIZES = (1000, 500_000)
"""Least and most numbers to add up; a clock that is too coarse to time them would ask for more."""
_MIN_LOOPS = 20

_SHARE, _LEAST_S = 0.1, 0.2
"""Share of a job's estimated time; and seconds, in which one detour of 1 ms is not yet HB144."""


def check_s(most_s: float, estimate_s: float) -> float:
    """Return how long to look: ``most_s``, of a job that takes less than ten of it a tenth."""
    return min(most_s, max(_SHARE * estimate_s, _LEAST_S))


def measure_noise(seconds: float = 0.5) -> dict[str, Any]:
    """Return {"detours": `Noise`, "fixed_work": `FixedWork`} as plain JSON values.

    Takes ``seconds`` in all, three quarters of them looking for detours.
    """
    return {"detours": asdict(look_for_detours(0.75 * seconds)),
            "fixed_work": asdict(repeat_fixed_work(0.25 * seconds))}


def look_for_detours(seconds: float = 0.5, now_ns: Clock = time.perf_counter_ns) -> Noise:
    """Spin on the clock for ``seconds`` and count the gaps that are no turn of the loop.

    The threshold is 10 median steps of a short run before, at least 2 us.
    """
    with no_garbage_collection():
        stamps = [now_ns() for _ in range(_CALIBRATION_STEPS)]
        median_ns = float(np.median(np.diff(np.array(stamps, dtype=np.int64))))
        threshold_ns = max(float(MIN_DETOUR_NS), _DETOUR_STEPS * median_ns)
        gaps: list[int] = []
        ended: list[int] = []
        begin = previous = now_ns()
        end = begin + round(seconds * 1e9)
        while previous < end:
            current = now_ns()
            if current - previous > threshold_ns:
                gaps.append(current - previous)
                ended.append(current)
            previous = current
    lasted_ns = max(previous - begin, 1)
    stolen_ns = sum(gaps) - len(gaps) * median_ns
    return Noise(
        seconds=lasted_ns / 1e9, n_detours=len(gaps), stolen_share=stolen_ns / lasted_ns,
        longest_ns=max(gaps, default=0), median_step_ns=median_ns, threshold_ns=threshold_ns,
        part_shares=_part_shares(gaps, [at - begin for at in ended], lasted_ns))


def _part_shares(gaps: list[int], ended: list[int], lasted_ns: int) -> tuple[float, ...]:
    """Return the share of each part that is in gaps, counted where they ended."""
    stolen, _ = np.histogram(ended, bins=_PARTS, range=(0, lasted_ns), weights=gaps)
    return tuple((stolen * _PARTS / lasted_ns).tolist())


def add_up(size: int) -> int:
    """Add up ``size`` numbers: no memory is touched, so that only the core's time counts."""
    return sum(range(size))


def repeat_fixed_work(
    seconds: float = 0.25, now_ns: Clock = time.perf_counter_ns,
    work: Callable[[int], object] = add_up,
) -> FixedWork:
    """Time equal pieces of ``work`` for about ``seconds``, at least 20 of them."""
    with no_garbage_collection():
        size = _work_size(now_ns, work)
        times_ns: list[int] = []
        end = now_ns() + round(seconds * 1e9)
        while len(times_ns) < _MIN_LOOPS or now_ns() < end:
            begin = now_ns()
            work(size)
            times_ns.append(now_ns() - begin)
    times = np.array(times_ns, dtype=np.float64)
    median = max(float(np.median(times)), 1.0)
    return FixedWork(
        n_loops=len(times), median_ns=median, cv=float(times.std() / max(times.mean(), 1.0)),
        p99_over_median=float(np.percentile(times, 99)) / median,
        max_over_median=float(times.max()) / median)


def _work_size(now_ns: Clock, work: Callable[[int], object]) -> int:
    """Return how much work takes about half a millisecond, by the fastest of three tries."""
    tried = 10_000
    times_ns = []
    for _ in range(3):
        begin = now_ns()
        work(tried)
        times_ns.append(now_ns() - begin)
    least, most = _WORK_SIZES
    return min(max(least, tried * _WORK_NS // max(min(times_ns), 1)), most)

"""The process of a rank: kernel files, cores, cgroup, limits, garbage collector. Workers inherit
affinity, memory policy, limits and allocator from the supervisor. Imports nothing heavy: a run
starts its template first."""

from __future__ import annotations

import contextlib
import fcntl
import gc
import math
import os
import re
import resource
import sys
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

_LIMIT_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The files below ``root``. Paths are relative to it; nothing here raises."""

    root: Path = Path("/")

    def text(self, path: str, limit_bytes: int = _LIMIT_BYTES) -> str | None:
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


class CpuTicks(NamedTuple):
    """Ticks of a core, or of all, since boot, by their use (proc_stat(5))."""

    user: int
    nice: int
    system: int
    idle: int
    iowait: int
    irq: int
    softirq: int
    steal: int

    @property
    def busy(self) -> int:
        return sum(self) - self.idle - self.iowait


_TICKS = re.compile(r"(cpu[0-9]*)\s" + r"\s*([0-9]+)\b" * len(CpuTicks._fields))


def cpu_ticks(text: str | None) -> dict[str, CpuTicks]:
    """Return the ticks in /proc/stat of ``cpu``, all cores, ``cpu0`` and so on; other lines, and
    those of kernels without all of these uses, are left out."""
    found = filter(None, map(_TICKS.match, (text or "").splitlines()))
    return {match[1]: CpuTicks(*map(int, match.groups()[1:])) for match in found}


def cpu_list(text: str | None) -> list[int]:
    """Return the numbers of the kernel's list format, ``0-3,8``; empty for None or no list."""
    numbers: list[int] = []
    for part in (text or "").split(","):
        match = re.fullmatch(r"\s*([0-9]{1,6})(?:-([0-9]{1,6}))?\s*", part)
        if match:
            numbers += range(int(match[1]), int(match[2] or match[1]) + 1)
    return numbers


_UNSUPERVISED = (
    "workers in processes of their own need Linux (pidfd_open, memfd_create, prctl and /proc): "
    "this is {platform}")


def own_cores(pid: int = 0) -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        with contextlib.suppress(ProcessLookupError):
            return sorted(os.sched_getaffinity(pid))
    return list(range(os.cpu_count() or 1))


def shared_memory(name: str, n_bytes: int) -> int:
    """Return the descriptor of a file of zeros in memory, or of an unnamed one on disk. In memory
    nobody can cut it, which would end whoever reads it by SIGBUS."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create(name, os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    else:
        with tempfile.TemporaryFile(prefix=name) as file:
            fd = os.dup(file.fileno())
    os.ftruncate(fd, n_bytes)
    if hasattr(fcntl, "F_ADD_SEALS"):
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW)
    return fd


def unsupervised() -> str | None:
    """Return why workers cannot be processes that a supervisor watches, or None if they can."""
    return None if sys.platform == "linux" else _UNSUPERVISED.format(platform=sys.platform)


_LIMITS = {"locked_memory_bytes": resource.RLIMIT_MEMLOCK, "open_files": resource.RLIMIT_NOFILE,
           "stack_bytes": resource.RLIMIT_STACK, "data_bytes": resource.RLIMIT_DATA,
           "processes": resource.RLIMIT_NPROC}
_SCHEDULING = {os.SCHED_OTHER: "other", os.SCHED_FIFO: "fifo", os.SCHED_RR: "rr",
               os.SCHED_BATCH: "batch", os.SCHED_IDLE: "idle"}
_ALLOCATOR_VARIABLES = re.compile(
    r"MALLOC_\w+|GLIBC_TUNABLES|LD_PRELOAD|TCMALLOC_\w+|MIMALLOC_\w+|PYTHONMALLOC")
_NO_LIMIT_BYTES = 2**60
"""cgroup v1 writes a number of pages near 2**63 bytes for "no limit"."""


def allocation(files: KernelFiles, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return affinity, memory policy, limits and allocator. ``memory_policy`` is the kernel's text
    (``interleave:0-1``: numa_memory_policy.rst), ``memory_nodes`` the NUMA nodes it may allocate
    on."""
    own = own_cores()
    status = files.fields("proc/self/status")
    return {
        "affinity": own,
        "affinity_cpus": len(own),
        "numa_nodes": _numa_nodes(files, own),
        "memory_nodes": status.get("Mems_allowed_list"),
        "memory_policy": memory_policy(files),
        "transparent_hugepages": {"0": False, "1": True}.get(status.get("THP_enabled", "")),
        "scheduling": _SCHEDULING.get(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        if hasattr(os, "sched_getscheduler") else None,
        "nice": os.getpriority(os.PRIO_PROCESS, 0),
        "limits": {name: soft_limit(number) for name, number in _LIMITS.items()},
        "cgroup": cgroup(files),
        "allocator": {name: value for name, value in sorted(environ.items())
                      if _ALLOCATOR_VARIABLES.fullmatch(name)},
    }


def memory_policy(files: KernelFiles, process: int | str = "self") -> str | None:
    """Return the NUMA policy, None if unknown: that of the first mapping, the program's file, which
    nobody binds (fs/proc/task_mmu.c, show_numa_map)."""
    line = files.line(f"proc/{process}/numa_maps")
    fields = line.split(maxsplit=2) if line else []
    return fields[1] if len(fields) > 1 else None


def cgroup(files: KernelFiles) -> dict[str, Any]:
    """Return ``cpus`` (may be a fraction) and ``memory_bytes``: the tightest of the cgroup and its
    parents, "unlimited" if none has a limit."""
    lines = [line.split(":", 2) for line in (files.text("proc/self/cgroup") or "").splitlines()]
    paths = {name: line[2] for line in lines if len(line) == 3 for name in line[1].split(",")}
    v2 = [*_folders(paths, "", "", "/unified")]
    cpus = [_quota_v2(files.line(f"{folder}/cpu.max")) for folder in v2]
    cpus += [_quota_v1(files, folder) for folder in _folders(paths, "cpu", "/cpu", "/cpu,cpuacct")]
    sizes = [_size(files.line(f"{folder}/memory.max")) for folder in v2]
    sizes += [_size(files.line(f"{folder}/memory.limit_in_bytes"))
              for folder in _folders(paths, "memory", "/memory")]
    version = 1 if "memory" in paths or "cpu" in paths else 2 if "" in paths else None
    return {"version": version, "cpus": _tightest(cpus), "memory_bytes": _tightest(sizes)}


def granted_cores(files: KernelFiles) -> float:
    granted = cgroup(files)["cpus"]
    return min(os.cpu_count() or 1, granted if isinstance(granted, (int, float)) else math.inf)


def usable_cores(files: KernelFiles) -> int:
    return max(1, math.floor(min(len(own_cores()), granted_cores(files))))


def threads_of_rank(
    own: Collection[int], masks: Sequence[Collection[int]], granted: float,
) -> int:
    """Return how many threads suit a rank with ``own`` cores. A core is divided by the ranks whose
    ``masks`` hold it; if a cgroup grants fewer (``granted``), each has as much less."""
    part = sum(Fraction(1, sum(core in mask for mask in masks)) for core in own)
    every = len(set().union(*masks))
    return max(1, math.floor(part * min(Fraction(1), Fraction(granted) / every)))


def expected_threads(own: int, local_size: int, every: int, granted: float) -> int:
    """Return `threads_of_rank` before other masks are known: equal parts of ``every`` cores."""
    part = min(Fraction(own), Fraction(every, local_size))
    used = min(every, own * local_size)
    return max(1, math.floor(part * min(Fraction(1), Fraction(granted) / max(1, used))))


def granted_memory(files: KernelFiles, installed_bytes: int) -> tuple[int, str]:
    limit = cgroup(files)["memory_bytes"]
    if isinstance(limit, (int, float)) and limit < installed_bytes:
        return int(limit), "the cgroup's"
    return installed_bytes, "the node's"


def ranks_a_core(masks: Sequence[Collection[int]]) -> float:
    """Return how many ranks a core has where it has most. Ranks share all cores of those whose
    masks overlap; ranks in a narrower mask only that one's."""
    every = [frozenset(mask) for mask in masks]
    joined: list[frozenset[int]] = []
    for mask in every:
        near = [other for other in joined if other & mask]
        joined = [*(other for other in joined if not other & mask), mask.union(*near)]
    return max(sum(mask <= cores for mask in every) / len(cores) for cores in {*every, *joined})


def _folders(paths: Mapping[str, str], controller: str, *mounts: str) -> Iterator[str]:
    if controller in paths:
        for mount in mounts:
            base = PurePosixPath(f"sys/fs/cgroup{mount}")
            group = base / paths[controller].strip("/")
            yield from map(str, (group, *group.parents[:len(group.parts) - len(base.parts)]))


def _quota_v2(line: str | None) -> float | None:
    fields = (line or "").split()
    if len(fields) != 2 or not fields[1].isdecimal() or not int(fields[1]):
        return None
    return float("inf") if fields[0] == "max" else float(fields[0]) / int(fields[1])


def _quota_v1(files: KernelFiles, folder: str) -> float | None:
    quota = files.number(f"{folder}/cpu.cfs_quota_us")
    period = files.number(f"{folder}/cpu.cfs_period_us")
    if quota is None or not period:
        return None
    return float("inf") if quota < 0 else quota / period


def _size(line: str | None) -> float | None:
    if line == "max" or (line and line.isdecimal() and int(line) >= _NO_LIMIT_BYTES):
        return float("inf")
    return float(line) if line and line.isdecimal() else None


def _tightest(limits: list[float | None]) -> float | int | str | None:
    tightest = min((limit for limit in limits if limit is not None), default=None)
    if tightest == float("inf"):
        return "unlimited"
    return int(tightest) if tightest is not None and tightest.is_integer() else tightest


def soft_limit(number: int) -> int | str:
    soft, _ = resource.getrlimit(number)
    return "unlimited" if soft == resource.RLIM_INFINITY else soft


def _numa_nodes(files: KernelFiles, own: list[int]) -> list[int] | None:
    base = "sys/devices/system/node"
    cores = {name: cpu_list(files.line(f"{base}/{name}/cpulist"))
             for name in files.names(base) if re.fullmatch(r"node\d+", name)}
    return sorted(int(name.removeprefix("node")) for name, cpus in cores.items()
                  if set(cpus) & set(own)) if cores else None


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
    """Collect nothing while modules are imported, a seventh of an import of torch, and exempt them
    for good."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        if enabled:
            gc.enable()


def spare_what_is_loaded() -> None:
    """Exempt all that is loaded from later collections: 0.2 s of all of torch."""
    gc.collect()
    gc.freeze()

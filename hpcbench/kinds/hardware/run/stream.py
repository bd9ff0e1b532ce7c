"""STREAM's kernels on this rank's memory, and copies between host and GPU.

The kernels and their bytes are McCalpin's: copy c = a, scale b = s c, add c = a + b, triad
a = b + s c. Reads of a cache before it writes are not counted
(www.cs.virginia.edu/stream/ref.html). Elements are whole numbers, so results are exact."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import psutil
import torch

from hpcbench.backends.devices import cache_bytes
from hpcbench.errors import CaseError
from hpcbench.kinds.hardware.plan.test import ALL_THREADS, ON_GPU_BYTES, TRANSFERS, Stream
from hpcbench.measurement.process import (
    KernelFiles,
    cpu_list,
    expected_threads,
    granted_cores,
    own_cores,
)
from hpcbench.operations.collectives import cold_bytes
from hpcbench.operations.data import DTYPES, Mismatch, mismatch
from hpcbench.operations.place import Place

SCALAR = 3
_TIMES_CACHE, _MOST_OF_MEMORY = 4, 0.25
_NO_CACHE_BYTES = 2**25
"""Taken where the kernel reports no cache: 32 MiB is more than most cores share."""
_MODULUS = 61
_SYSTEM = Path("/sys/devices/system")


class StreamOperation:
    """One kernel on arrays a, b and c; ``output`` is what it writes."""

    def __init__(self, work: Stream, place: Place, *, validate: bool) -> None:
        """Allocate on this rank. Raises CaseError if it cannot."""
        self.name, self.place, self._work = work.name, place, work
        self._threads_before = torch.get_num_threads()
        self._affinity = _bound(work.numa_node)
        try:
            self._set_up()
        except BaseException:
            self.close()  # an inline worker goes on in this process
            raise

    def _set_up(self) -> None:
        work, place = self._work, self.place
        local_size = min(place.local_size, place.world_size)
        self._threads = _threads(work, place, local_size)
        torch.set_num_threads(self._threads or self._threads_before)
        dtype = DTYPES[work.dtype]
        self._cache_bytes = (last_cache_bytes(_SYSTEM / "cpu") if place.device.type == "cpu" else
                             cache_bytes(place.device) or 0)
        self._bytes = work.size_bytes or (
            _fitting(self._cache_bytes, local_size) if place.device.type == "cpu" else
            # four times its cache, but where a bus limits the rate
            ON_GPU_BYTES if work.memory else
            max(ON_GPU_BYTES, cold_bytes(cache_bytes(place.device))))
        self._count = self._bytes // dtype.itemsize
        self._bytes = self._count * dtype.itemsize
        self._call = self._prepared(dtype)

    def prepare(self) -> None:
        """Do nothing: the inputs stay, and a call writes all of the output. A wipe before each
        call would leave a part of the arrays in the caches."""

    def run(self) -> None:
        self._call()

    def corrupt_output(self) -> None:
        self.output[-1] += 1

    def check(self) -> Mismatch | None:
        """Compare every element, then wipe, so that the next check sees a new result."""
        got = self.output.to("cpu")
        expected = self._expected(self._count)
        wrong = mismatch(got, expected, lambda piece: got[piece] == expected[piece])
        if self._work.kernel != "read_modify_write":
            self.output.fill_(0)  # no element of a result is 0
        return wrong

    def answer(self) -> dict[str, Any]:
        return {"stream": {"array_bytes": self._bytes, "cache_bytes": self._cache_bytes,
                           "threads": self._threads}}

    def close(self) -> None:
        torch.set_num_threads(self._threads_before)
        if self._affinity:
            _set_affinity(self._affinity)

    def _prepared(self, dtype: torch.dtype) -> Callable[[], object]:
        """Return the call; it sets ``output`` and what is expected of it."""
        if self._work.kernel in TRANSFERS:
            return self._transfer(dtype)
        first, second = (self._input(dtype, at).to(self.place.device) for at in (0, 1))
        self.output = torch.empty_like(first)
        if self._work.kernel == "read_modify_write":
            self.output = first
            return lambda: self.output.neg_()
        kernels: Mapping[str, Callable[[], object]] = {
            "copy": lambda: self.output.copy_(first),
            "scale": lambda: torch.mul(first, SCALAR, out=self.output),
            "add": lambda: torch.add(first, second, out=self.output),
            "triad": lambda: torch.add(first, second, alpha=SCALAR, out=self.output)}
        return kernels[self._work.kernel]

    def _transfer(self, dtype: torch.dtype) -> Callable[[], object]:
        """Return a copy between host and GPU. It has never run on one."""
        host = self._input(dtype, 0)
        back = torch.empty_like(host)
        if self._work.memory == "pinned":
            host, back = host.pin_memory(), back.pin_memory()
        there = host.to(self.place.device)
        if self._work.kernel == "host_to_device":
            self.output = torch.empty_like(there)
            return lambda: self.output.copy_(host, non_blocking=True)
        self.output = back
        if self._work.kernel == "device_to_host":
            return lambda: self.output.copy_(there, non_blocking=True)
        other, side = torch.empty_like(there), torch.cuda.Stream(self.place.device)

        def both() -> None:
            main = torch.cuda.current_stream(self.place.device)
            side.wait_stream(main)
            with torch.cuda.stream(side):
                other.copy_(host, non_blocking=True)
            self.output.copy_(there, non_blocking=True)
            main.wait_stream(side)
        return both

    def _input(self, dtype: torch.dtype, which: int) -> torch.Tensor:
        """Return a (0) or b (1): whole numbers that differ from rank to rank."""
        numbers = torch.arange(_MODULUS, dtype=torch.int64)
        table = ((1 + which) * numbers + self.place.number) % _MODULUS + 1
        repeats = -(-self._count // _MODULUS)
        return table.to(dtype).repeat(repeats)[:self._count]  # a copy would touch it twice

    def _expected(self, count: int) -> torch.Tensor:
        dtype, kernel = DTYPES[self._work.dtype], self._work.kernel
        first = self._input(dtype, 0)
        if kernel == "scale":
            return SCALAR * first
        if kernel in ("add", "triad"):
            return first + (SCALAR if kernel == "triad" else 1) * self._input(dtype, 1)
        if kernel == "read_modify_write":
            return torch.where(self.output[:1].to("cpu") < 0, -first, first)
        return first


def last_cache_bytes(cpus: Path) -> int:
    """Return the bytes of all caches of the last level of the node, 0 if unknown."""
    caches: dict[tuple[int, str], int] = {}
    for index in cpus.glob("cpu[0-9]*/cache/index[0-9]*"):
        level, size, shared = (_line(index / name) for name in ("level", "size", "shared_cpu_list"))
        match = re.fullmatch(r"(\d+)K", size)
        if match and level:
            caches[int(level), shared] = int(match[1]) * 1024
    last = max((level for level, _ in caches), default=0)
    return sum(size for (level, _), size in caches.items() if level == last)


def _fitting(cache_bytes: int, local_size: int) -> int:
    """Return the bytes of an array: STREAM asks for four times the caches, here of all ranks.

    The three arrays of all ranks take at most a quarter of the memory."""
    wanted = _TIMES_CACHE * (cache_bytes or _NO_CACHE_BYTES) // local_size
    return min(wanted, int(_MOST_OF_MEMORY * psutil.virtual_memory().total) // (3 * local_size))


def _threads(work: Stream, place: Place, local_size: int) -> int:
    """Return the threads to use, 0 on a device. Raises CaseError if there are fewer cores."""
    if place.device.type != "cpu" or work.memory:
        return 0
    own = len(own_cores())
    if work.threads == ALL_THREADS:
        return expected_threads(own, local_size, os.cpu_count() or 1, granted_cores(KernelFiles()))
    if work.threads > own:
        raise CaseError(f"{work.threads} threads are more than the {own} cores of this rank")
    return work.threads


def _bound(node: int) -> set[int]:
    """Bind to a NUMA node, if any; return the cores before. Raises CaseError where it is not."""
    if node < 0:
        return set()
    cores = set(cpu_list(_line(_SYSTEM / "node" / f"node{node}" / "cpulist") or None))
    before = os.sched_getaffinity(0)
    if not cores & before:
        raise CaseError(f"this rank has no core of NUMA node {node}")
    _set_affinity(cores & before)
    return before


def _set_affinity(cores: Iterable[int]) -> None:
    """Bind every thread of the process: those of OpenMP may run already."""
    for task in Path("/proc/self/task").iterdir():
        os.sched_setaffinity(int(task.name), cores)


def _line(path: Path) -> str:
    try:
        return path.read_text(encoding="ascii").strip()
    except OSError:
        return ""

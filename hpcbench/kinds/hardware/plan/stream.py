"""Test ``stream``: how fast each rank reads and writes memory, all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import product
from types import MappingProxyType
from typing import TYPE_CHECKING

from hpcbench.kinds.hardware.plan.block import HardwareBlock
from hpcbench.kinds.hardware.plan.test import HardwareTest, HardwareWork
from hpcbench.operations.collectives import DTYPE_BYTES, planned_cold_bytes
from hpcbench.plan.estimate import CASE_S, device_kind
from hpcbench.plan.points import CommonPoint, Draft, PlanRequest, least_calls, too_large
from hpcbench.plan.support import resolve_device, unfit_world
from hpcbench.units import format_bytes

if TYPE_CHECKING:
    from hpcbench.plan.case import Case

ARRAYS: Mapping[str, int] = MappingProxyType({
    "copy": 2, "scale": 2, "add": 3, "triad": 3, "read_modify_write": 2,
    "host_to_device": 1, "device_to_host": 1, "both_directions": 2})
"""Kernel -> arrays that a call moves: the first four are STREAM's, counted as STREAM does."""
DEFAULT_KERNELS = ("copy", "scale", "add", "triad")
TRANSFERS = ("host_to_device", "device_to_host", "both_directions")
"""Between host and device."""
TYPES = tuple(name for name in DTYPE_BYTES if name != "uint8")
"""A byte does not hold the results."""
ALL_THREADS = 0
"""As many threads as the rank has cores."""
_ASSUMED_BYTES = 2**27
ON_GPU_BYTES = 2**28
"""Of an array whose size the machine decides; on a GPU at least, for copies to and from it."""
_BYTES_PER_S = MappingProxyType({"cpu": 5e9, "cuda": 5e11})


@dataclass(frozen=True, slots=True)
class Stream(HardwareWork):
    """One kernel over arrays of ``size_bytes``; 0: four times the last cache, divided among ranks.

    ``threads`` is ALL_THREADS or a number, 0 on a device. ``memory`` is ``pinned`` or ``pageable``
    of TRANSFERS, else empty. ``numa_node`` binds the rank's threads; -1 does not.
    """

    dtype: str
    kernel: str
    size_bytes: int
    threads: int
    memory: str = ""
    numa_node: int = -1
    groups: int = 1
    test: str = "stream"

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others."""
        parts = [self.test, self.kernel, self.dtype]
        parts += [format_bytes(self.size_bytes)] if self.size_bytes else []
        parts += [f"threads={self.threads or 'all'}"] if not self.memory else [self.memory]
        parts += [f"numa={self.numa_node}"] if self.numa_node >= 0 else []
        return [*parts, f"ranks={world_size}"]

    def moved_bytes(self, array_bytes: int) -> int:
        """Return the bytes of a call on arrays of this size."""
        return ARRAYS[self.kernel] * array_bytes


def stream_of(case: Case) -> Stream:
    """Return the workload of a case of this test. Raises TypeError for another."""
    if not isinstance(case.workload, Stream):
        raise TypeError(f"{case.label} is no stream")
    return case.workload


def _axes(block: HardwareBlock) -> dict[str, tuple[object, ...]]:
    return {"kernel": block.kernel or DEFAULT_KERNELS, "size": block.size or (0,),
            "threads": block.threads or ("all",), "memory": block.memory or ("pinned", "pageable"),
            "numa_node": block.numa_node or (-1,)}


def _lengths(block: HardwareBlock) -> dict[str, int]:
    return {name: len(values) for name, values in _axes(block).items()}


def _drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    device = resolve_device(point.backend, point.device)
    seen = set()
    for kernel, size, threads, memory, node in product(*_axes(block).values()):
        count = int(str(threads).replace("all", str(ALL_THREADS)))
        work = Stream(point.dtype, str(kernel), int(str(size)),
                      count if device == "cpu" and kernel not in TRANSFERS else 0,
                      str(memory) if kernel in TRANSFERS else "", int(str(node)))
        if work not in seen:  # axes that a kernel does not have
            seen.add(work)
            yield _draft(work, device, point, job)


def _draft(work: Stream, device: str, point: CommonPoint, job: PlanRequest) -> Draft:
    array_bytes = work.size_bytes or _assumed_bytes(work, device)
    needed = 3 * array_bytes
    on_host = array_bytes if work.kernel in TRANSFERS else 0
    skip = (_unfit(work, device) or unfit_world(point.backend, point.world_size, job.world_size)
            or too_large(needed, on_host, device, job.config.hardware))
    rate = _BYTES_PER_S[device_kind(device)]
    return Draft(
        workload=work, device=device, validate=point.validate, memory_bytes=needed, skip=skip,
        estimate_s=CASE_S + (2 + least_calls(point, job.config)) * needed / rate,
        identity=work.identity(), host_bytes=2 * on_host)


def _assumed_bytes(work: Stream, device: str) -> int:
    """Return the most that an array can have whose size the machine decides."""
    if device == "cpu":
        return _ASSUMED_BYTES
    least = ON_GPU_BYTES
    return least if work.kernel in TRANSFERS else max(least, planned_cold_bytes(device))


def _unfit(work: Stream, device: str) -> str | None:
    """Return why the kernel cannot run on the device, or None."""
    if work.dtype not in TYPES:
        return f"stream has no {work.dtype}: take one of {', '.join(TYPES)}"
    if work.kernel in TRANSFERS and device not in ("cuda", "auto"):
        return f"{work.kernel} is between host and GPU: take device cuda"
    if work.size_bytes and work.size_bytes < DTYPE_BYTES[work.dtype]:
        return f"size {work.size_bytes} holds no element of {work.dtype}"
    return None


STREAM = HardwareTest(
    "stream", "memory bandwidth: STREAM's kernels, and copies between host and GPU", Stream,
    _lengths, _drafts)

"""The base of the tests of the machine in a plan, and two of them: ``stream`` and ``storage``.

``stream``: how fast each rank reads and writes memory; ``storage``: files; all ranks concurrently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import product
from types import MappingProxyType
from typing import Any, TypeVar

from hpcbench.kinds.hardware.block import ACCESSES, HardwareBlock
from hpcbench.operations.collectives import NUMBER_BYTES, planned_cold_bytes
from hpcbench.plan.case import Case, PlanRequest
from hpcbench.plan.order import CASE_S, device_kind
from hpcbench.plan.points import CommonPoint, Draft, least_calls, too_large
from hpcbench.plan.support import resolve_device, unfit_world
from hpcbench.plan.workload import Choice, Features, Label, Workload
from hpcbench.records import dataclass
from hpcbench.units import format_bytes

W = TypeVar("W", bound="HardwareWork")


class HardwareWork(Workload):
    """Base of the workloads of all tests. ``test`` is stored, and determines the class."""

    __slots__ = ()
    test: str

    def identity(self) -> dict[str, Any]:
        return {"kind": "hardware", **self.to_json()}


@dataclass(frozen=True, slots=True)
class HardwareTest:
    """A test as the planner sees it.

    ``operation``, ``module:class`` below `kinds.hardware.run`, takes the workload, the place and
    whether to check. ``axes`` gives the values of each axis that only this test reads; ``drafts``
    the drafts of one common point: one for each combination of those axes. ``problem`` returns an
    error in those keys, if there is one."""

    name: str
    meaning: str
    work: type[HardwareWork]
    operation: str
    axes: Callable[[HardwareBlock], Mapping[str, Sequence[object]]]
    drafts: Callable[[HardwareBlock, CommonPoint, PlanRequest], Iterator[Draft]]
    problem: Callable[[HardwareBlock], str | None] = lambda _block: None


def work_of(case: Case) -> HardwareWork:
    return of_test(case, HardwareWork)  # type: ignore[type-abstract]


def of_test(case: Case, test: type[W]) -> W:
    """Return the workload of a case of a test. Raises TypeError for another."""
    if not isinstance(case.workload, test):
        raise TypeError(f"{case.label} is no {test.__name__}")
    return case.workload


ARRAYS: Mapping[str, int] = MappingProxyType({
    "copy": 2, "scale": 2, "add": 3, "triad": 3, "read_modify_write": 2,
    "host_to_device": 1, "device_to_host": 1, "both_directions": 2})
"""Kernel -> arrays that a call moves: the first four are STREAM's, counted as STREAM does."""
DEFAULT_KERNELS = ("copy", "scale", "add", "triad")
TRANSFERS = ("host_to_device", "device_to_host", "both_directions")
"""Between host and device."""
TYPES = tuple(name for name in NUMBER_BYTES if name != "uint8")
"""A byte does not hold the results."""
ALL_THREADS = 0
"""As many threads as the rank has cores."""
_ASSUMED_BYTES = 2**27
ON_GPU_BYTES = 2**28
"""Bytes of an array whose size the machine decides: for copies; for kernels on a GPU, at least."""
_MEMORY_BYTES_PER_S = MappingProxyType({"cpu": 5e9, "cuda": 5e11})


@dataclass(frozen=True, slots=True)
class Stream(HardwareWork):
    """One kernel over arrays of ``size_bytes``; 0: four times the last cache, divided among ranks.

    ``threads`` is ALL_THREADS or a number, 0 on a device. ``memory`` is ``pinned`` or ``pageable``
    of TRANSFERS, else empty. ``numa_node`` binds the rank's threads; -1 does not."""

    dtype: str
    kernel: str
    size_bytes: int
    threads: int
    memory: str = ""
    numa_node: int = -1
    groups: int = 1
    test: str = "stream"

    def label(self, world_size: int) -> Label:
        parts = [self.test, self.kernel, self.dtype]
        parts += [format_bytes(self.size_bytes)] if self.size_bytes else []
        parts += [f"threads={self.threads or 'all'}"] if not self.memory else [self.memory]
        parts += [f"numa={self.numa_node}"] if self.numa_node >= 0 else []
        return Label(self.test, [*parts, f"ranks={world_size}"])

    def choice(self) -> Choice:
        """Return the arrays and the kernel as the task; how they are reached is the setting."""
        axes = self.to_json()
        setting = {"threads": self.threads or "all", "memory": self.memory,
                   "numa_node": self.numa_node if self.numa_node >= 0 else "not bound"}
        return Choice(axes, {name: axes[name] for name in axes if name not in setting}, setting)

    def moved_bytes(self, array_bytes: int) -> int:
        return ARRAYS[self.kernel] * array_bytes


def stream_of(case: Case) -> Stream:
    return of_test(case, Stream)


def _stream_axes(block: HardwareBlock) -> dict[str, tuple[object, ...]]:
    return {"kernel": block.kernel or DEFAULT_KERNELS, "size": block.size or (0,),
            "threads": block.threads or ("all",), "memory": block.memory or ("pinned", "pageable"),
            "numa_node": block.numa_node or (-1,)}


def _stream_drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    device = resolve_device(point.backend, point.device)
    seen = set()
    for kernel, size, threads, memory, node in product(*_stream_axes(block).values()):
        count = int(str(threads).replace("all", str(ALL_THREADS)))
        work = Stream(point.dtype, str(kernel), int(str(size)),
                      count if device == "cpu" and kernel not in TRANSFERS else 0,
                      str(memory) if kernel in TRANSFERS else "", int(str(node)))
        if work not in seen:  # axes that a kernel does not have
            seen.add(work)
            yield _stream_draft(work, device, point, job)


def _stream_draft(work: Stream, device: str, point: CommonPoint, job: PlanRequest) -> Draft:
    array_bytes = work.size_bytes or _assumed_bytes(work, device)
    needed = 3 * array_bytes
    on_host = array_bytes if work.kernel in TRANSFERS else 0
    skip = (_unfit_stream(work, device)
            or unfit_world(point.backend, point.world_size, job.world_size)
            or too_large(needed, on_host, device, job.config.hardware))
    rate = _MEMORY_BYTES_PER_S[device_kind(device)]
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


def _unfit_stream(work: Stream, device: str) -> str | None:
    if work.dtype not in TYPES:
        return f"stream has no {work.dtype}: take one of {', '.join(TYPES)}"
    if work.kernel in TRANSFERS and device not in ("cuda", "auto"):
        return f"{work.kernel} is between host and GPU: take device cuda"
    if work.size_bytes and work.size_bytes < NUMBER_BYTES[work.dtype]:
        return f"size {work.size_bytes} holds no element of {work.dtype}"
    return None


STREAM = HardwareTest(
    "stream", "memory bandwidth: STREAM's kernels, and copies between host and GPU", Stream,
    "stream:StreamOperation", _stream_axes, _stream_drafts)


_FILE_BYTES = (64 * 2**20,)
BLOCK_BYTES, BLOCKS = 4096, 256
"""A random read is of a page; so many are one sample."""
_DISK_BYTES_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Storage(HardwareWork):
    """Files of ``size_bytes`` a rank in ``folder``; a call of read_random reads BLOCKS pages."""

    access: str
    size_bytes: int
    folder: str
    dtype: str = "uint16"
    groups: int = 1
    test: str = "storage"

    @property
    def reads(self) -> bool:
        return self.access.startswith("read")

    @property
    def call_bytes(self) -> int:
        if self.access == "read_random":
            return BLOCK_BYTES * min(BLOCKS, self.size_bytes // BLOCK_BYTES)
        return self.size_bytes

    @property
    def features(self) -> Features:
        """Return the features: torch's checkpoint needs ranks, which exchange a plan."""
        return Features(needs_ranks=self.access == "write_dcp")

    def label(self, world_size: int) -> Label:
        return Label(self.test, [
            self.test, self.access, format_bytes(self.size_bytes), f"ranks={world_size}"])


def storage_of(case: Case) -> Storage:
    return of_test(case, Storage)


def _storage_drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    for access, size in product(block.access or ACCESSES, block.size or _FILE_BYTES):
        work = Storage(access, size, block.folder or job.config.output.folder)
        calls = 1 + least_calls(point, job.config)
        yield Draft(
            workload=work, device="cpu", validate=point.validate, memory_bytes=2 * size,
            skip=_unfit_storage(work, point) or unfit_world(
                point.backend, point.world_size, job.world_size),
            estimate_s=CASE_S + calls * work.call_bytes * point.world_size / _DISK_BYTES_PER_S,
            identity=work.identity())


def _unfit_storage(work: Storage, point: CommonPoint) -> str | None:
    if point.backend != "gloo":
        return f"storage uses no backend: take gloo, not {point.backend}"
    if point.device not in ("auto", "cpu"):
        return f"storage is written from the host: take device cpu, not {point.device}"
    if work.size_bytes < BLOCK_BYTES:
        return f"size {work.size_bytes} is less than a page of {BLOCK_BYTES} B"
    return None


STORAGE = HardwareTest(
    "storage", "files: sequential and random reads, checkpoints that are synced to the disk",
    Storage, "storage:StorageOperation", lambda block: {
        "access": block.access or ACCESSES, "size": block.size or _FILE_BYTES}, _storage_drafts)

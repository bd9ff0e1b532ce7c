"""Test ``storage``: how fast files are read and written, all ranks at once."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from hpcbench.kinds.hardware.plan.block import ACCESSES, HardwareBlock
from hpcbench.kinds.hardware.plan.test import HardwareTest, HardwareWork
from hpcbench.plan.estimate import CASE_S
from hpcbench.plan.points import CommonPoint, Draft, PlanRequest, least_calls
from hpcbench.plan.support import unfit_world
from hpcbench.plan.workload import Features
from hpcbench.units import format_bytes

if TYPE_CHECKING:
    from hpcbench.plan.case import Case

SIZES = (64 * 2**20,)
BLOCK_BYTES, BLOCKS = 4096, 256
"""A random read is of a page; so many are one sample."""
_BYTES_PER_S = 1e9


@dataclass(frozen=True, slots=True)
class Storage(HardwareWork):
    """Files of ``size_bytes`` a rank in ``folder``; of read_random a call reads BLOCKS pages."""

    access: str
    size_bytes: int
    folder: str
    dtype: str = "uint16"
    groups: int = 1
    test: str = "storage"

    @property
    def reads(self) -> bool:
        """Return whether it reads."""
        return self.access.startswith("read")

    @property
    def call_bytes(self) -> int:
        """Return the bytes that a rank reads or writes in one call."""
        if self.access == "read_random":
            return BLOCK_BYTES * min(BLOCKS, self.size_bytes // BLOCK_BYTES)
        return self.size_bytes

    @property
    def features(self) -> Features:
        """Return that torch's checkpoint needs ranks, which exchange a plan."""
        return Features(needs_ranks=self.access == "write_dcp")

    def words(self, world_size: int) -> list[str]:
        """Return what tells it from others."""
        return [self.test, self.access, format_bytes(self.size_bytes), f"ranks={world_size}"]


def storage_of(case: Case) -> Storage:
    """Return the workload of a case of this test. Raises TypeError for another."""
    if not isinstance(case.workload, Storage):
        raise TypeError(f"{case.label} is no storage")
    return case.workload


def _lengths(block: HardwareBlock) -> dict[str, int]:
    return {"access": len(block.access or ACCESSES), "size": len(block.size or SIZES)}


def _drafts(block: HardwareBlock, point: CommonPoint, job: PlanRequest) -> Iterator[Draft]:
    for access, size in product(block.access or ACCESSES, block.size or SIZES):
        work = Storage(access, size, block.folder or job.config.output.folder)
        calls = 1 + least_calls(point, job.config)
        yield Draft(
            workload=work, device="cpu", validate=point.validate, memory_bytes=2 * size,
            skip=_unfit(work, point) or unfit_world(
                point.backend, point.world_size, job.world_size),
            estimate_s=CASE_S + calls * work.call_bytes * point.world_size / _BYTES_PER_S,
            identity=work.identity())


def _unfit(work: Storage, point: CommonPoint) -> str | None:
    """Return why it cannot run, or None."""
    if point.backend != "gloo":
        return f"storage uses no backend: take gloo, not {point.backend}"
    if point.device not in ("auto", "cpu"):
        return f"storage is written from the host: take device cpu, not {point.device}"
    if work.size_bytes < BLOCK_BYTES:
        return f"size {work.size_bytes} is less than a page of {BLOCK_BYTES} B"
    return None


STORAGE = HardwareTest(
    "storage", "files: sequential and random reads, checkpoints that are synced to the disk",
    Storage, _lengths, _drafts)

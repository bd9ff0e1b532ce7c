"""Rates of files: in the slowest rank's time, and of each rank by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.hardware.derive.own_rates import own_rates
from hpcbench.kinds.hardware.plan.storage import storage_of
from hpcbench.reduce.results import CaseResult, CaseSamples

COLD, WARM, MIXED, UNKNOWN = "cold", "warm", "mixed", "unknown"


@dataclass(frozen=True, slots=True)
class StorageRecord:
    """Bytes/s of one way to read or write.

    Attributes:
        rank_bytes_per_s: bytes of a rank's call / the median time.
        all_ranks_bytes_per_s: the same times the ranks.
        folder, file_system: where the files of rank 0 were.
        cache: of reads: cold if none of them found its data in the page cache, warm if all did,
            mixed, or unknown where the kernel does not tell; None of writes.
    """

    rank_bytes_per_s: float | None = None
    all_ranks_bytes_per_s: float | None = None
    folder: str | None = None
    file_system: str | None = None
    cache: str | None = None


def records(items: Sequence[CaseResult]) -> dict[str, StorageRecord]:
    """Return the record of each case of the test."""
    return {item.case.case_id: _record(item) for item in items}


def observed(item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
    """Return what follows from the stamps: the bytes/s of each rank in its own times."""
    return {"rank_rates": own_rates(storage_of(item.case).call_bytes, samples, item.case.batch)}


def _record(item: CaseResult) -> StorageRecord:
    work = storage_of(item.case)
    told = [left["storage"] for left in item.detail.values() if "storage" in left]
    where = told[0] if told else {}
    rate = (work.call_bytes / item.statistics.median_s
            if item.statistics and item.statistics.median_s > 0 else None)
    return StorageRecord(
        rate, rate and rate * item.case.world_size, where.get("folder"), where.get("file_system"),
        _cache(sum(one["cold"] for one in told), sum(one["warm"] for one in told))
        if work.reads and told else None)


def _cache(cold: int, warm: int) -> str:
    if cold and warm:
        return MIXED
    return COLD if cold else WARM if warm else UNKNOWN

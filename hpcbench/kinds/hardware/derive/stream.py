"""Bandwidths of memory: in the slowest rank's time, and of each rank by itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.kinds.hardware.derive.own_rates import own_rates, rate_seconds
from hpcbench.kinds.hardware.plan.stream import stream_of
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import declared_memory, device_of, most_rates
from hpcbench.units import grouped


@dataclass(frozen=True, slots=True)
class StreamRecord:
    """Bytes/s of one kernel.

    Attributes:
        array_bytes: of one array on a rank; None where no rank told.
        cache_bytes: of the node's last caches; 0 where the kernel tells none.
        threads: of a rank; 0 on a device.
        rank_bytes_per_s: bytes that a rank moves in a call / its time by the clock named in
            ``clock``.
        all_ranks_bytes_per_s: the same times the ranks.
        is_peak: whether it is the best of its device, and number of ranks, in this run.
        of_declared: share of ``hardware.memory_bandwidth_gb_per_s``.
        declared_bytes_per_s: what that peak is of all ranks.
        of_best: share of the best of its device and number of ranks in this run.
        clock: whose time the rate is by, ``device`` or ``host`` (`own_rates.rate_seconds`).
    """

    array_bytes: int | None = None
    cache_bytes: int | None = None
    threads: int | None = None
    rank_bytes_per_s: float | None = None
    all_ranks_bytes_per_s: float | None = None
    is_peak: bool = False
    of_declared: float | None = None
    declared_bytes_per_s: float | None = None
    of_best: float | None = None
    clock: str | None = None


def records(items: Sequence[CaseResult]) -> dict[str, StreamRecord]:
    """Return the record of each case of the test."""
    found = {item.case.case_id: _record(item) for item in items}
    groups = grouped(((item.device or item.case.device, stream_of(item.case).memory,
                       item.case.world_size), item) for item in items if item.status == "ok")
    for same in groups.values():
        best = max(same, key=lambda item: found[item.case.case_id].rank_bytes_per_s or 0)
        most = found[best.case.case_id].rank_bytes_per_s
        for item in same:
            record = found[item.case.case_id]
            found[item.case.case_id] = replace(
                record, is_peak=item is best, of_best=record.rank_bytes_per_s / most
                if record.rank_bytes_per_s and most else None)
    return found


def beside_declared(
    record: StreamRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> StreamRecord:
    """Return the record beside the declared peak; copies to a host have none."""
    peak = None if stream_of(item.case).memory else declared_memory(item, hardware)
    if record.rank_bytes_per_s is None or peak is None:
        return record
    return replace(record, of_declared=record.rank_bytes_per_s / peak,
                   declared_bytes_per_s=peak * item.case.world_size)


def observed(item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
    """Return what follows from the stamps: the bytes/s of each rank in its own times."""
    moved = _moved_bytes(item)
    return {"rank_rates": own_rates(moved, samples, item.case.batch, on_device=True)
            if moved else ()}


def peaks(items: Sequence[CaseResult], known: Mapping[str, StreamRecord]) -> dict[str, float]:
    """Return bytes/s of a rank: of each device the most ranks at once, and each number of them.

    No copies from or to a host.
    """
    return most_rates(
        (device_of(item), item.case.world_size, rate)
        for item in items if (record := known.get(item.case.case_id))
        and (rate := record.rank_bytes_per_s) and not stream_of(item.case).memory)


def told(item: CaseResult) -> dict[str, Any]:
    """Return what the ranks told of the arrays; that of the first, since all have the same."""
    found = (left["stream"] for left in item.detail.values() if "stream" in left)
    return next(iter(found), {})


def _moved_bytes(item: CaseResult) -> int | None:
    array_bytes = told(item).get("array_bytes")
    return None if array_bytes is None else stream_of(item.case).moved_bytes(array_bytes)


def _record(item: CaseResult) -> StreamRecord:
    known, moved = told(item), _moved_bytes(item)
    record = StreamRecord(known.get("array_bytes"), known.get("cache_bytes"), known.get("threads"))
    timed = rate_seconds(item)
    if moved is None or timed is None:
        return record
    time_s, clock = timed
    return replace(record, rank_bytes_per_s=moved / time_s, clock=clock,
                   all_ranks_bytes_per_s=moved / time_s * item.case.world_size)

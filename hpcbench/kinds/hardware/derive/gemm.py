"""Rates of products: of the slowest rank's time, of each rank, and the best of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.grouping import grouped
from hpcbench.kinds.hardware.derive.own_rates import own_rates, rate_seconds
from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.reduce.ceilings import ceilings_of, device_of
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import Demand, Roofline, roofline


@dataclass(frozen=True, slots=True)
class GemmRecord:
    """FLOP/s of one product.

    Attributes:
        rank_flops_per_s: 2 m n k / the time of a call by the clock named in ``clock``.
        all_ranks_flops_per_s: the same times the ranks.
        is_peak: whether it is the best of its type, device and number of ranks in this run.
        roofline: what binds it, by what as many ranks reached in this run.
        clock: whose time the rate is by, ``device`` or ``host`` (`own_rates.rate_seconds`).
        time_s: that time of a call.
    """

    rank_flops_per_s: float | None = None
    all_ranks_flops_per_s: float | None = None
    is_peak: bool = False
    roofline: Roofline | None = None
    clock: str | None = None
    time_s: float | None = None


def records(items: Sequence[CaseResult]) -> dict[str, GemmRecord]:
    """Return the record of each case of the test."""
    found = {item.case.case_id: _record(item) for item in items}
    groups = grouped(((gemm_of(item.case).dtype, item.device or item.case.device,
                       item.case.backend, item.case.env, item.case.world_size), item)
                     for item in items if item.status == "ok")
    for same in groups.values():
        best = max(same, key=lambda item: found[item.case.case_id].rank_flops_per_s or 0)
        found[best.case.case_id] = replace(found[best.case.case_id], is_peak=True)
    return found


def peaks(items: Sequence[CaseResult], known: Mapping[str, GemmRecord]) -> dict[str, float]:
    """Return device and type -> FLOP/s of a rank, of the most ranks that were measured at once."""
    found: dict[str, tuple[int, float]] = {}
    for item in items:
        record = known.get(item.case.case_id)
        if record and record.rank_flops_per_s:
            name = f"{device_of(item)} {gemm_of(item.case).dtype}"
            of_case = (item.case.world_size, record.rank_flops_per_s)
            found[name] = max(found.get(name, of_case), of_case)
    return {name: rate for name, (_, rate) in found.items()}


def with_roofline(
    record: GemmRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> GemmRecord:
    """Return the record with what binds the product; ``hardware`` has what was measured."""
    work = gemm_of(item.case)
    if record.time_s is None:
        return record
    return replace(record, roofline=roofline(
        Demand(work.flops, work.moved_bytes), record.time_s,
        ceilings_of(item, work.dtype, hardware)))


def observed(item: CaseResult, samples: CaseSamples) -> dict[str, Any]:
    """Return what follows from the stamps: the FLOP/s of each rank in its own times."""
    return {"rank_rates": own_rates(gemm_of(item.case).flops, samples, item.case.batch,
                                    on_device=True)}


def _record(item: CaseResult) -> GemmRecord:
    work = gemm_of(item.case)
    timed = rate_seconds(item)
    if timed is None:
        return GemmRecord()
    time_s, clock = timed
    rate = work.flops / time_s
    return GemmRecord(rate, rate * item.case.world_size, clock=clock, time_s=time_s)

"""Rates of products: of the slowest rank's time, of each rank, and the best of a search."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.kinds.hardware.derive.own_rates import own_rates, rate_seconds
from hpcbench.kinds.hardware.plan.gemm import gemm_of
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import (
    COMPUTE,
    MEASURED,
    Ceiling,
    Demand,
    Roofline,
    ceilings_of,
    device_of,
    most_rates,
    roofline,
)
from hpcbench.units import grouped


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
    """Return FLOP/s of a rank: of each device and type the most ranks at once, and each number.
    """
    return most_rates(
        (f"{device_of(item)} {gemm_of(item.case).dtype}", item.case.world_size, rate)
        for item in items if (record := known.get(item.case.case_id))
        and (rate := record.rank_flops_per_s))


def with_roofline(
    record: GemmRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> GemmRecord:
    """Return the record with what binds the product; ``hardware`` has what was measured."""
    work, rate = gemm_of(item.case), record.rank_flops_per_s
    if record.time_s is None or rate is None:
        return record
    ceilings, demand = ceilings_of(item, work.dtype, hardware), Demand(work.flops, work.moved_bytes)
    found = roofline(demand, record.time_s, ceilings)
    if found and found.score_of and (found.score_of.limit, found.score_of.source) == (
            COMPUTE, MEASURED) and rate >= found.score_of.rate:
        found = _without_itself(found, demand, ceilings)
    return replace(record, roofline=found)


def _without_itself(
    found: Roofline, demand: Demand, ceilings: Sequence[Ceiling],
) -> Roofline:
    """Return the roofline of the best product: beside what is declared, else without a score.

    It is the measured ceiling, so a score of it would be 100 % whatever it reached.
    """
    declared = [one for one in ceilings if (one.limit, one.source) != (COMPUTE, MEASURED)]
    if any(one.limit == COMPUTE for one in declared):
        return roofline(demand, found.time_s, declared) or found
    return replace(found, score=None, evidence=(
        "it is the best product of its type here, so the measured ceiling is its own rate: "
        "declare hardware.peak_flops for a score"))


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

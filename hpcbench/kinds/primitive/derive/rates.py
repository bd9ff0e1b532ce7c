"""Rates of a primitive. Each is derived once, from one time; rates are never averaged."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.primitive.plan.demands import product_bytes
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.operations.bandwidth import Bandwidth
from hpcbench.reduce.ceilings import COMPUTE, ceilings_of
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import Demand, Roofline, roofline


@dataclass(frozen=True, slots=True)
class FlopRates:
    """FLOP/s of one call: of the rank that has most to do, and of all ranks together.

    The first compares with the peak of one device, the second with that of the machine; where the
    work is uneven the second is less than the first times the ranks.
    """

    busiest_rank_flops_per_s: float
    all_ranks_flops_per_s: float


def flop_rates(work: Primitive, time_s: float) -> FlopRates | None:
    """Return flops / t and total_flops / t; None without flops and for a time of 0."""
    if not work.flops or not time_s > 0:
        return None
    return FlopRates(work.flops / time_s, work.total_flops / time_s)


def roofline_of(item: CaseResult, hardware: Mapping[str, Any]) -> Roofline | None:
    """Return what binds a case in its median time; None without a ceiling.

    The products of the rank that has most to do, and each collective of a call is a message.
    """
    if item.statistics is None:
        return None
    work = primitive_of(item.case)
    moved = product_bytes(work, item.case.world_size) if work.flops else 0
    demand = Demand(work.flops, moved, work.wire_bytes, len(work.calls) if work.wire_bytes else 0)
    return roofline(demand, item.statistics.median_s, ceilings_of(item, work.dtype, hardware))


def product_shares(
    item: CaseResult, flops: FlopRates | None, hardware: Mapping[str, Any],
) -> dict[str, Any]:
    """Return the shares of the measured and of the declared product, by field of the record."""
    if flops is None:
        return {}
    ceilings = ceilings_of(item, primitive_of(item.case).dtype, hardware)
    return {f"of_{one.source}_product": flops.busiest_rank_flops_per_s / one.rate
            for one in ceilings if one.limit == COMPUTE}


def communication_rates(work: Primitive, time_s: float) -> Bandwidth | None:
    """Return size_bytes / t and wire_bytes / t of what communicates and does nothing else.

    ``wire_bytes`` is each collective's size times its busbw factor, so that the second is the
    bus bandwidth of nccl-tests (doc/PERFORMANCE.md). None for everything that computes, too: a time
    that holds a product is no time of a link.
    """
    if work.flops or not work.size_bytes or not time_s > 0:
        return None
    return Bandwidth(work.size_bytes / time_s, work.wire_bytes / time_s)

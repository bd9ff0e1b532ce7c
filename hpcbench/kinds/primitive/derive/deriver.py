"""The deriver of primitives."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.kinds.kind import Deriver
from hpcbench.kinds.primitive.derive.columns import COLUMNS, column_values
from hpcbench.kinds.primitive.derive.partners import PrimitiveRecord, compare
from hpcbench.kinds.primitive.derive.rates import (
    communication_rates,
    flop_rates,
    product_shares,
    roofline_of,
)
from hpcbench.kinds.primitive.derive.work import work
from hpcbench.kinds.primitive.plan.workload import Primitive, primitive_of
from hpcbench.operations.bandwidth import WireRate
from hpcbench.plan.case import Case
from hpcbench.reduce.ceilings import over_measured
from hpcbench.reduce.checks import MOST_OF_PEAK, Problem
from hpcbench.reduce.link_rates import bandwidth_problem
from hpcbench.reduce.results import CaseResult
from hpcbench.units import to_tflop_per_s


class PrimitiveDeriver(Deriver):
    """Derives rates, and comparisons with the parts alone and with torch."""

    record = PrimitiveRecord
    version = 4
    columns = COLUMNS
    column_values = staticmethod(column_values)
    work = staticmethod(work)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, PrimitiveRecord]:
        """Return rates and comparisons of each case with statistics."""
        found = compare(items)
        return {case_id: replace(
            found[case_id], roofline=roofline_of(item, hardware),
            **product_shares(item, found[case_id].flops, hardware))
            for item in items if (case_id := item.case.case_id) in found}

    def sent_bytes(self, item: CaseResult) -> float | None:
        """Return what a rank sends, as sizes times busbw factors, times the ranks."""
        return float(primitive_of(item.case).wire_bytes * item.case.world_size)

    def problems(
        self, item: CaseResult, time_s: float, nodes: Mapping[int, str],
        hardware: Mapping[str, Any],
    ) -> Iterator[Problem]:
        """Yield HB128 and HB146 if bandwidth or FLOP rate is above the declared peak."""
        work = primitive_of(item.case)
        if rates := communication_rates(work, time_s):
            yield from bandwidth_problem(
                item.case, WireRate(rates.busbw_bytes_per_s), nodes, hardware)
        yield from _flops_problem(work, time_s, hardware)

    def joint_problems(
        self, items: Sequence[CaseResult], records: Mapping[str, PrimitiveRecord],
    ) -> Iterator[tuple[Case, Problem]]:
        """Yield HB146 for what is above the best product of the run."""
        for item in items:
            if record := records.get(item.case.case_id):
                for problem in over_measured("its FLOP rate", record.of_measured_product):
                    yield item.case, problem


def _flops_problem(
    work: Primitive, time_s: float, hardware: Mapping[str, Any]
) -> Iterator[Problem]:
    """HB146: no rank does more products in its time than the declared peak of its device."""
    rates, peak = flop_rates(work, time_s), hardware.get("peak_flops", {}).get(work.dtype)
    if rates is None or peak is None or (
            rates.busiest_rank_flops_per_s <= MOST_OF_PEAK * peak):
        return
    rate = to_tflop_per_s(rates.busiest_rank_flops_per_s)
    yield Problem(
        "HB146", f"{rate:.4g} TFLOP/s of a rank are more than the {to_tflop_per_s(peak):.4g} that "
        f"hardware.peak_flops allows for {work.dtype}: it computes less than it is credited with, "
        "in another dtype (TF32 for fp32), or the declared peak is wrong", rejects=False)

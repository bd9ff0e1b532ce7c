"""The columns of primitives in ``/cases`` of results.h5."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hpcbench.kinds.primitive.derive.partners import NOTHING, PrimitiveRecord
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.reduce.case_columns import CaseColumn, settings
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_COLUMNS, column_values_of
from hpcbench.statistics.overlap import told
from hpcbench.trace.described import PURE, TEXT

_OF_WORK = (
    CaseColumn("primitive", TEXT, "name of the primitive", str),
    CaseColumn("implementation", TEXT, "name of the implementation", str),
    CaseColumn("order", TEXT, "what comes first: communication or product", str),
    CaseColumn("shape", TEXT, "model and layer of the extents; empty if they were given", str),
    CaseColumn("flops", "FLOP", "of one call, on the rank that has most to do", int),
    CaseColumn("total_flops", "FLOP", "of one call, on all ranks", int),
    CaseColumn("size_bytes", "bytes", "sum of the sizes of its collectives", int),
    CaseColumn("wire_bytes", "bytes", "sum of the sizes times their busbw factors", int),
)
_EXTENTS = tuple(CaseColumn(f"problem_{name}", PURE, f"{name} of the global problem", int)
                 for name in ("m", "n", "k"))
COLUMNS = (
    *_OF_WORK, *_EXTENTS,
    CaseColumn("options", TEXT, "options: NAME=VALUE, separated by spaces", str),
    CaseColumn("busiest_rank_flops_per_s", "FLOP/s", "flops / median_s"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "total_flops / median_s"),
    CaseColumn("algbw_bytes_per_s", "bytes/s", "size_bytes / median_s; comm_only alone"),
    CaseColumn("busbw_bytes_per_s", "bytes/s", "wire_bytes / median_s; comm_only alone"),
    CaseColumn("compute_only_s", "s", "median of the products alone"),
    CaseColumn("comm_only_s", "s", "median of the communication alone"),
    CaseColumn("exposed_s", "s", "communication that no product hides; NaN if it may be chance"),
    CaseColumn("overlap_efficiency", PURE, "share of the shorter part that passed under the longer "
               "one; NaN if it may be chance"),
    CaseColumn("times_longest_part", PURE, "time over that of the longer part alone; NaN if it may "
               "be chance"),
    CaseColumn("speedup_over_torch", PURE, "time of torch over this time; NaN if it may be chance"),
    CaseColumn("of_measured_product", PURE, "busiest_rank_flops_per_s over the best gemm here"),
    CaseColumn("of_declared_product", PURE, "busiest_rank_flops_per_s over the declared peak"),
    *ROOFLINE_COLUMNS,
)


def column_values(item: CaseResult, record: PrimitiveRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS."""
    work, known = primitive_of(item.case), record or NOTHING
    values: dict[str, Any] = {column.name: getattr(work, column.name) for column in _OF_WORK}
    values |= {column.name: getattr(work, column.name.removeprefix("problem_"))
               for column in _EXTENTS}
    values |= asdict(known.flops) if known.flops else {}
    values |= asdict(known.communication) if known.communication else {}
    return values | {
        **column_values_of(known.roofline),
        "of_measured_product": known.of_measured_product,
        "of_declared_product": known.of_declared_product,
        "options": settings(work.options),
        "compute_only_s": known.compute_s, "comm_only_s": known.communicate_s,
        "exposed_s": told(known.exposed_s), "overlap_efficiency": told(known.efficiency),
        "times_longest_part": told(known.times_longest), "speedup_over_torch": told(known.speedup)}

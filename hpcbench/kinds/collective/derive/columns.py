"""The columns of collectives in ``/cases`` of results.h5."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from hpcbench.kinds.collective.plan.workload import collective_of
from hpcbench.reduce.case_columns import CaseColumn
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import BOUND_COLUMNS, column_values_of
from hpcbench.trace.described import PURE, TEXT

if TYPE_CHECKING:
    from hpcbench.kinds.collective.derive.deriver import CollectiveRecord

COLUMNS = (
    CaseColumn("collective", TEXT, "name of the collective", str),
    CaseColumn("op", TEXT, "reduction: sum, max and so on; empty of none", str),
    CaseColumn("root", PURE, "root rank; -1 of none", int),
    CaseColumn("in_place", PURE, "1 in place, 0 out of place; -1 of a barrier", int),
    CaseColumn("requested_bytes", "bytes", "size in the sweep file", int),
    CaseColumn("size_bytes", "bytes", "size as nccl-tests counts it, after rounding", int),
    CaseColumn("count", "elements", "nccl-tests' count", int),
    CaseColumn("split", TEXT, "how data are divided among ranks: even, or another way", str),
    CaseColumn("buffers", TEXT, "warm: restored before each call; cold: sets take turns", str),
    CaseColumn("group_stride", PURE, "how far apart the ranks of a group are", int),
    CaseColumn("busbw_factor", PURE, "bus bandwidth over algorithm bandwidth"),
    CaseColumn("algbw_bytes_per_s", "bytes/s", "size_bytes / median_s"),
    CaseColumn("busbw_bytes_per_s", "bytes/s", "algbw_bytes_per_s x busbw_factor"),
    CaseColumn("of_link", PURE, "share of what the declared links allow; NaN where none is"),
    CaseColumn("of_measured_link", PURE, "share of what two ranks reached in the run"),
    CaseColumn("measured_link_bytes_per_s", "bytes/s", "what two ranks reached in the run",
               apart=True),
    *BOUND_COLUMNS,
)


def column_values(item: CaseResult, record: CollectiveRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS."""
    work = asdict(collective_of(item.case))
    names = {column.name for column in COLUMNS}
    return {**{name: value for name, value in work.items() if name in names},
            "busbw_factor": record and record.busbw_factor, "of_link": record and record.of_link,
            "of_measured_link": record and record.of_measured_link,
            "measured_link_bytes_per_s": record and record.measured_link,
            **column_values_of(record.roofline if record else None, BOUND_COLUMNS),
            **(asdict(record.bandwidth) if record and record.bandwidth else {})}

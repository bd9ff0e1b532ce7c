"""The columns of tests of the machine in ``/cases`` of results.h5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.reduce.case_columns import CaseColumn, texts, whole_numbers
from hpcbench.reduce.results import CaseResult

if TYPE_CHECKING:
    from hpcbench.kinds.hardware.derive.deriver import HardwareRecord

_OF_WORK = (*texts(test="test of the machine"),
            *whole_numbers(m="rows of the result", n="columns of the result",
                           k="inner extent of the product"))
COLUMNS = (
    *_OF_WORK,
    CaseColumn("rank_flops_per_s", "FLOP/s", "2 m n k / median_s"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "rank_flops_per_s times the ranks"),
)


def column_values(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS; those of other tests are absent."""
    work = work_of(item.case)
    values: dict[str, Any] = {column.name: getattr(work, column.name, None) for column in _OF_WORK}
    if record and (rates := record.gemm):
        values |= {"rank_flops_per_s": rates.rank_flops_per_s,
                   "all_ranks_flops_per_s": rates.all_ranks_flops_per_s}
    return values

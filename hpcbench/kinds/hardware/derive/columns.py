"""The columns of tests of the machine in ``/cases`` of results.h5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.reduce.case_columns import CaseColumn, texts, whole_numbers
from hpcbench.reduce.results import CaseResult

if TYPE_CHECKING:
    from hpcbench.kinds.hardware.derive.deriver import HardwareRecord

_OF_WORK = (*texts(test="test of the machine"),
            *texts(kernel="stream: what is done with the arrays",
                  access="storage: what is done with files"),
           *whole_numbers(m="rows of the result", n="columns of the result",
                           k="inner extent of the product"))
COLUMNS = (
    *_OF_WORK,
    CaseColumn("rank_flops_per_s", "FLOP/s", "2 m n k / median_s"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "rank_flops_per_s times the ranks"),
    CaseColumn("array_bytes", "bytes", "stream: bytes of an array of a rank", int),
    CaseColumn("rank_bytes_per_s", "bytes/s", "bytes of a rank's call / median_s"),
    CaseColumn("all_ranks_bytes_per_s", "bytes/s", "rank_bytes_per_s times the ranks"),
)


def column_values(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS; those of other tests are absent."""
    work = work_of(item.case)
    values: dict[str, Any] = {column.name: getattr(work, column.name, None) for column in _OF_WORK}
    if record and (rates := record.gemm):
        values |= {"rank_flops_per_s": rates.rank_flops_per_s,
                   "all_ranks_flops_per_s": rates.all_ranks_flops_per_s}
    if record and (found := record.stream or record.storage):
        values |= {"array_bytes": getattr(found, "array_bytes", None),
                   "rank_bytes_per_s": found.rank_bytes_per_s,
                   "all_ranks_bytes_per_s": found.all_ranks_bytes_per_s}
    return values

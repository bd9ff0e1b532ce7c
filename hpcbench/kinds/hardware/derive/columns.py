"""The columns of tests of the machine in ``/cases`` of results.h5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.reduce.case_columns import CaseColumn, texts, whole_numbers
from hpcbench.reduce.results import CaseResult

if TYPE_CHECKING:
    from hpcbench.kinds.hardware.derive.deriver import HardwareRecord

_OF_WORK = (*texts(test="test of the machine"),
            *texts(what="of pairs: latency or bandwidth",
                   direction="of pairs: one way, or both at once"),
            *whole_numbers(m="rows of the result", n="columns of the result",
                           k="inner extent of the product",
                           at_once="1: all pairs of a round at the same time, 0: one pair alone",
                           message_bytes="of pairs: bytes of a message",
                           messages="of pairs: round trips, or messages under way together"))
COLUMNS = (
    *_OF_WORK,
    CaseColumn("rank_flops_per_s", "FLOP/s", "2 m n k / median_s"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "rank_flops_per_s times the ranks"),
    CaseColumn("longest_latency_s", "s", "of pairs: the latency of the worst link"),
    CaseColumn("least_link_bytes_per_s", "bytes/s", "of pairs: the bandwidth of the worst link"),
)


def column_values(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS; those of other tests are absent."""
    work = work_of(item.case)
    values: dict[str, Any] = {column.name: getattr(work, column.name, None) for column in _OF_WORK}
    if record and (rates := record.gemm):
        values |= {"rank_flops_per_s": rates.rank_flops_per_s,
                   "all_ranks_flops_per_s": rates.all_ranks_flops_per_s}
    if record and record.pairs and record.pairs.distances:
        links = record.pairs.distances
        values |= ({"longest_latency_s": max(one.greatest for one in links)}
                   if values["what"] == "latency" else
                   {"least_link_bytes_per_s": min(one.least for one in links)})
    return values

"""The columns of tests of the machine in ``/cases`` of results.h5."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.reduce.case_columns import CaseColumn, texts, whole_numbers
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import ROOFLINE_COLUMNS, column_values_of
from hpcbench.trace.described import PURE

if TYPE_CHECKING:
    from hpcbench.kinds.hardware.derive.deriver import HardwareRecord

_OF_WORK = (
    *texts(test="test of the machine", kernel="stream: what is done with the arrays",
           memory="stream: host memory of copies to and from a GPU: pinned or pageable",
           what="pairs: latency or bandwidth", direction="pairs: one way, or both at once",
           cache="pairs: whether messages lie in a cache: warm or cold",
           right="gemm: type of the second operand where it is another",
           access="storage: what is done with files"),
    *whole_numbers(fast_accumulation="gemm of fp8: 1 if sums stay in the matrix units alone",
                   numa_node="stream: NUMA node that threads and memory are bound to",
                   at_once="pairs: 1 if all of a round are measured at the same time",
                   message_bytes="pairs: bytes of a message",
                   messages="pairs: round trips, or messages under way together"))
_EXTENTS = whole_numbers(problem_m="rows of the result of a gemm", problem_n="columns of it",
                         problem_k="inner extent of the product")
COLUMNS = (
    *_OF_WORK, *_EXTENTS,
    CaseColumn("rank_flops_per_s", "FLOP/s",
               "2 m n k / device_s, / median_s where rate_clock is host"),
    CaseColumn("all_ranks_flops_per_s", "FLOP/s", "rank_flops_per_s times the ranks"),
    CaseColumn("longest_latency_s", "s", "pairs: the latency of the worst link"),
    CaseColumn("least_link_bytes_per_s", "bytes/s", "pairs: the bandwidth of the worst link",
               apart=True),
    *whole_numbers(threads="stream: threads of a rank; 0 on a device"),
    CaseColumn("array_bytes", "bytes", "stream: bytes of an array of a rank", int),
    CaseColumn("rank_bytes_per_s", "bytes/s",
               "bytes of a rank's call / device_s, / median_s where rate_clock is host or absent"),
    *texts(rate_clock="gemm, stream: whose time rates are by: device or host"),
    CaseColumn("all_ranks_bytes_per_s", "bytes/s", "rank_bytes_per_s times the ranks"),
    CaseColumn("of_declared_memory", PURE, "stream: share of the declared rate of memory"),
    CaseColumn("of_best_stream", PURE, "stream: share of the best of as many ranks in the run"),
    *ROOFLINE_COLUMNS,
)


def column_values(item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
    """Return a case's values of COLUMNS; those of other tests are absent."""
    work = work_of(item.case)
    values: dict[str, Any] = {column.name: getattr(work, column.name, None) for column in _OF_WORK}
    values |= {column.name: getattr(work, column.name.removeprefix("problem_"), None)
               for column in _EXTENTS}
    if record and (of_clock := record.gemm or record.stream):
        values["rate_clock"] = of_clock.clock
    if record and (rates := record.gemm):
        values |= {"rank_flops_per_s": rates.rank_flops_per_s,
                   "all_ranks_flops_per_s": rates.all_ranks_flops_per_s}
    if record and record.gemm:
        values |= column_values_of(record.gemm.roofline)
    if record and record.stream:
        values |= {"of_declared_memory": record.stream.of_declared,
                   "of_best_stream": record.stream.of_best}
    if record and (found := record.stream or record.storage):
        values |= {"threads": getattr(found, "threads", None),
                   "array_bytes": getattr(found, "array_bytes", None),
                   "rank_bytes_per_s": found.rank_bytes_per_s,
                   "all_ranks_bytes_per_s": found.all_ranks_bytes_per_s}
    if record and record.pairs and record.pairs.distances:
        links = record.pairs.distances
        values |= ({"longest_latency_s": max(one.greatest for one in links)}
                   if values["what"] == "latency" else
                   {"least_link_bytes_per_s": min(one.least for one in links)})
    return values

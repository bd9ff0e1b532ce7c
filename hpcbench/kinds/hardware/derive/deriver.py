"""The columns of tests of the machine in ``/cases`` of results.h5.

The deriver of tests of the machine: each test derives its own part of the record.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from hpcbench.kinds.hardware.derive import gemm, pairs, storage, stream
from hpcbench.kinds.hardware.derive.gemm import GemmRecord
from hpcbench.kinds.hardware.derive.pairs import PairsRecord
from hpcbench.kinds.hardware.derive.storage import StorageRecord
from hpcbench.kinds.hardware.derive.stream import StreamRecord
from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.kinds.kind import Deriver
from hpcbench.reduce.case_columns import CaseColumn, texts, whole_numbers
from hpcbench.reduce.kind_facts import Fact, RankRates, ReadSamples
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import MEASURED, ROOFLINE_COLUMNS, column_values_of
from hpcbench.trace.columns import PURE
from hpcbench.units import grouped

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


_TESTS: Mapping[str, ModuleType] = {
    "gemm": gemm,
    "stream": stream,
    "pairs": pairs,
    "storage": storage,
}
"""Test -> the module with its ``records`` and ``observed``."""


@dataclass(frozen=True, slots=True)
class HardwareRecord:
    """What is derived of a case: the part of its own test; the others are None.

    ``rank_rates`` are the rates of each rank in the median of its own times: FLOP/s of gemm,
    bytes/s of other tests; empty where a test has none.
    """

    gemm: GemmRecord | None = None
    stream: StreamRecord | None = None
    pairs: PairsRecord | None = None
    storage: StorageRecord | None = None
    rank_rates: tuple[float, ...] = ()


class HardwareDeriver(Deriver):
    """Derives rates of the machine."""

    record = HardwareRecord
    version = 4
    columns = COLUMNS
    column_values = staticmethod(column_values)

    def derive(
        self, items: Sequence[CaseResult], hardware: Mapping[str, Any],
    ) -> Mapping[str, HardwareRecord]:
        """Return the record of each case; rooflines are by what as many ranks reached."""
        tests = grouped((work_of(item.case).test, item) for item in items)
        alone = {case_id: HardwareRecord(**{test: record}) for test, same in tests.items()
                 for case_id, record in _TESTS[test].records(same).items()}
        return {item.case.case_id: _beside(
            alone[item.case.case_id], item,
            {**hardware, MEASURED: self.measured(same, alone)})
            for same in grouped((item.case.world_size, item) for item in items).values()
            for item in same}

    def measured(
        self, items: Sequence[CaseResult], records: Mapping[str, HardwareRecord],
    ) -> Mapping[str, Mapping[str, float]]:
        """Return the best rates of a rank, of the most ranks that were measured at once."""
        ok = [item for item in items if item.status == "ok"]
        found = {item.case.case_id: records.get(item.case.case_id) for item in ok}
        of_pairs = {name: record.pairs for name, record in found.items() if record and record.pairs}
        tested = [item for item in ok if item.case.case_id in of_pairs]
        return {"flops": gemm.peaks(ok, {name: record.gemm for name, record in found.items()
                                         if record and record.gemm}),
                "memory": stream.peaks(ok, {name: record.stream for name, record in found.items()
                                            if record and record.stream}),
                "links": pairs.peaks(tested, of_pairs, "bandwidth"),
                "messages": pairs.peaks(tested, of_pairs, "latency")}

    def facts(
        self, item: CaseResult, record: HardwareRecord | None, read: ReadSamples,
    ) -> Iterator[Fact]:
        """Yield the matrix of pairs, or each rank's rate in its own times.

        The rate of files is no fact of the node alone.
        """
        if record and record.pairs and (found := pairs.rates_of(item, record.pairs)):
            yield found
        if record and work_of(item.case).test in ("gemm", "stream"):
            yield RankRates(record.rank_rates)

    def observe(self, item: CaseResult, samples: CaseSamples) -> Mapping[str, Any]:
        """Return the fields that a test reads from its stamps."""
        found: Mapping[str, Any] = _TESTS[work_of(item.case).test].observed(item, samples)
        return found


def _beside(
    record: HardwareRecord, item: CaseResult, hardware: Mapping[str, Any],
) -> HardwareRecord:
    """Return the record with what is beside ceilings."""
    if record.gemm is not None:
        return replace(record, gemm=gemm.with_roofline(record.gemm, item, hardware))
    if record.stream is not None:
        return replace(record, stream=stream.beside_declared(record.stream, item, hardware))
    return record

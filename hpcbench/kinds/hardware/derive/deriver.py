"""The deriver of tests of the machine: each test derives its own part of the record."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import ModuleType
from typing import Any

from hpcbench.kinds.hardware.derive import gemm, pairs, storage, stream
from hpcbench.kinds.hardware.derive.columns import COLUMNS, column_values
from hpcbench.kinds.hardware.derive.gemm import GemmRecord
from hpcbench.kinds.hardware.derive.pairs import PairsRecord
from hpcbench.kinds.hardware.derive.storage import StorageRecord
from hpcbench.kinds.hardware.derive.stream import StreamRecord
from hpcbench.kinds.hardware.plan.test import work_of
from hpcbench.kinds.kind import Deriver
from hpcbench.reduce.ceilings import MEASURED
from hpcbench.reduce.machine_rates import PairRates
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.units import grouped

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

    def pair_rates(
        self, item: CaseResult, record: HardwareRecord | None,
    ) -> PairRates | None:
        """Return the matrix of pairs as rates."""
        return pairs.rates_of(item, record.pairs) if record and record.pairs else None

    def rank_rates(self, item: CaseResult, record: HardwareRecord | None) -> Sequence[float]:
        """Return each rank's rate in its own times; of files it is no fact of the node alone."""
        is_own = work_of(item.case).test in ("gemm", "stream")
        return record.rank_rates if record and is_own else ()

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

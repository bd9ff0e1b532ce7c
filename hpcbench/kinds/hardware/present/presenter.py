"""The presenter of tests of the machine: each test has tables and charts of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

from hpcbench.kinds.hardware.derive.deriver import HardwareRecord
from hpcbench.kinds.hardware.plan.planner import TESTS
from hpcbench.kinds.hardware.plan.test import HardwareWork, work_of
from hpcbench.kinds.hardware.present import gemm, pairs, storage, stream
from hpcbench.kinds.kind import Presenter
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped
from hpcbench.views.chart import Chart, roofline_charts, roofline_definitions, roofline_tables
from hpcbench.views.table import Line, Table

Items = Sequence[CaseResult]
Records = Mapping[str, HardwareRecord]
_TESTS: Mapping[str, ModuleType] = {
    "gemm": gemm,
    "stream": stream,
    "pairs": pairs,
    "storage": storage,
}
"""Test -> its module with ``DEFINITIONS``, ``FIELDS``, ``table``, ``charts`` and ``row``."""


class HardwarePresenter(Presenter[HardwareWork, HardwareRecord]):
    """Presents tests of the machine."""

    in_every_summary = False
    fields = ("test", *dict.fromkeys(
        field for module in _TESTS.values() for field in module.FIELDS))

    def listing(self) -> Iterator[Line]:
        """Yield what can be measured of a machine."""
        yield Line("tests of the machine (kind hardware)", "title")
        for test in TESTS.values():
            yield Line(f"  {test.name:<20}{test.meaning}")

    def definitions(self, items: Items, derived: Records) -> Iterator[str]:
        """Yield what the columns of the tests that ran mean."""
        for test in _by_test(items):
            yield from _TESTS[test].DEFINITIONS
        yield from roofline_definitions(gemm.rooflines(items, derived))

    def tables(self, title: str, items: Items, derived: Records) -> Iterator[Table]:
        """Yield a table of each test of a block."""
        for test, same in _by_test(items).items():
            yield from _TESTS[test].tables(f"{title}: {test}", same, derived)

    def charts(self, items: Items, derived: Records) -> Iterable[Chart]:
        """Yield the charts of each test."""
        for test, same in _by_test(items).items():
            yield from _TESTS[test].charts(same, derived)
        yield from roofline_charts(gemm.ROOFLINE_OF, gemm.rooflines(items, derived))

    def overviews(self, items: Items, derived: Records) -> Iterator[Table]:
        """Yield what binds products."""
        yield from roofline_tables(gemm.ROOFLINE_OF, gemm.rooflines(items, derived))

    def row(self, item: CaseResult, record: HardwareRecord | None) -> dict[str, Any]:
        """Return the test and its own fields."""
        test = work_of(item.case).test
        return {"test": test, **_TESTS[test].row(item, record)}

    def sections(
        self, rows: Sequence[Mapping[str, Any]], items: Items, derived: Records,
    ) -> dict[str, Any]:
        """Return ``hardware``: the ok rows by test; nothing of a run without such cases."""
        if not items:
            return {}
        return {"hardware": {test: [
            {field: row[field] for field in (*_COMMON, *_TESTS[test].FIELDS)} for row in rows
            if row["test"] == test and row["status"] == "ok"] for test in _by_test(items)}}


_COMMON = ("case_id", "device", "world_size", "dtype", "env", "n", "median_s", "p95_s", "ci_low_s",
           "ci_high_s", "ci_reliable", "mode", "fold")


def _by_test(items: Items) -> dict[str, list[CaseResult]]:
    return grouped((work_of(item.case).test, item) for item in items)

"""The presenter of sleeps: a table, a chart, fields and a section of the summaries.

It computes nothing: numbers are those of the statistics and of the derived records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.plugins import CaseResult, Presenter
from hpcbench.views.chart import Axis, Bar, BarChart, BarSection, Look
from hpcbench.views.table import Column, Group, Row, Show, Table
from hpcbench_sleep.deriver import SleepRecord
from hpcbench_sleep.planner import Sleep

Records = Mapping[str, SleepRecord]
ASKED = Column("milliseconds", "asked", Show.COUNT, "ms")
TIME = Column("time_p50", "time p50", Show.US, "us", better="less")
OVERSLEPT = Column("overslept", "overslept", Show.US, "us", "median beyond what was asked", "less")


class SleepPresenter(Presenter[Sleep, SleepRecord]):
    """Presents sleeps."""

    fields = ("milliseconds", "overslept_s")

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Records,
    ) -> Iterator[Table]:
        """Yield the table of a block."""
        rows = tuple(Row(_cells(item, derived[item.case.case_id]), item.status, item.case.case_id)
                     for item in items if item.case.case_id in derived)
        yield Table(title, (ASKED, TIME, OVERSLEPT), (Group("", rows),))

    def charts(self, items: Sequence[CaseResult], derived: Records) -> Iterator[BarChart]:
        """Yield the times, one bar a case."""
        look = Look("sleeping", "#0072B2")
        bars = tuple(Bar(item.case.label, (), ((item.statistics.median_s, look),))
                     for item in items if item.statistics)
        if bars:
            yield BarChart(
                "sleeps", "median of the timed samples", "sleep", (),
                tuple(item.case.case_id for item in items), Axis("time", Show.MS, "ms"), (),
                (BarSection("", bars),), (look,))

    def row(self, item: CaseResult, record: SleepRecord | None) -> Mapping[str, object]:
        """Return the values of `fields`."""
        return {"milliseconds": item.case.workload.milliseconds,
                "overslept_s": record.overslept_s if record else None}

    def sections(
        self, rows: Sequence[Mapping[str, object]], items: Sequence[CaseResult], derived: Records,
    ) -> Mapping[str, object]:
        """Return ``sleep``: what was asked, and how much too long it took."""
        return {"sleep": [{name: row[name] for name in self.fields} for row in rows]}


def _cells(item: CaseResult, record: SleepRecord) -> tuple[float | None, ...]:
    return (item.case.workload.milliseconds,
            item.statistics.median_s if item.statistics else None, record.overslept_s)

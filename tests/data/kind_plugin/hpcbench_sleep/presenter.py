"""The presenter of sleeps: a table, a chart, fields and a section of the summaries.

It computes nothing: numbers are those of the statistics and of the derived records.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.plugins import CaseResult, Presenter, Words, chart, table
from hpcbench_sleep.planner import Sleep

Values = Mapping[str, float | None]
Records = Mapping[str, Values]
COLUMNS = (
    table.Column("milliseconds", "asked", table.Show.COUNT, "ms"),
    table.Column("time_p50", "time p50", table.Show.US, "us", better="less"),
    table.Column("overslept", "overslept", table.Show.US, "us", "median beyond what was asked",
                 "less"))
PART = chart.Look("sleeping", "#0072B2")


class SleepPresenter(Presenter[Sleep, Values]):
    """Presents sleeps."""

    fields = ("milliseconds", "overslept_s")

    def listing(self) -> Iterator[table.Line]:
        yield table.Line("sleeps (kind sleep)", "title")

    def words(self, works: Sequence[Sleep]) -> Words:
        longest = max(work.milliseconds for work in works)
        return Words(what=[f"up to {longest} ms"], types=[work.dtype for work in works])

    def tables(
        self, title: str, items: Sequence[CaseResult], derived: Records,
    ) -> Iterator[table.Table]:
        rows = tuple(table.Row(_cells(item, derived[item.case.case_id]), item.status,
                               item.case.case_id)
                     for item in items if item.case.case_id in derived)
        yield table.Table(title, COLUMNS, (table.Group("", rows),))

    def overviews(
        self, items: Sequence[CaseResult], derived: Records,
    ) -> Iterator[table.Line | chart.BarChart]:
        yield table.Line("overslept = time p50 less what was asked")
        bars = tuple(chart.Bar(item.case.label, (), ((item.statistics.median_s, PART),))
                     for item in items if item.statistics)
        if bars:
            yield chart.BarChart(
                "sleeps", "median of the timed samples", "sleep", (),
                tuple(item.case.case_id for item in items),
                chart.Axis("time", table.Show.MS, "ms"), (), (chart.BarSection("", bars),), (PART,))

    def row(self, item: CaseResult, record: Values | None) -> Mapping[str, object]:
        return {"milliseconds": item.case.workload.milliseconds,
                "overslept_s": record["overslept_s"] if record else None}

    def sections(
        self, rows: Sequence[Mapping[str, object]], items: Sequence[CaseResult], derived: Records,
    ) -> Mapping[str, object]:
        return {"sleep": [{name: row[name] for name in self.fields} for row in rows]}


def _cells(item: CaseResult, record: Values) -> tuple[float | None, ...]:
    return (item.case.workload.milliseconds,
            item.statistics.median_s if item.statistics else None, record["overslept_s"])

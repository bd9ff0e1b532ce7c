"""What was read of the machine, what not and why, and what cases used of it.

Power and the use of cores over time, with the cases marked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from hpcbench.reduce.courses import ShownCourse, core_use, powers
from hpcbench.reduce.results import CaseResult, Results, SampleSource
from hpcbench.reduce.usage import RankTold, Usage
from hpcbench.trace.telemetry import TABLES
from hpcbench.units import grouped, rank_list
from hpcbench.views.chart import Axis, ChartPoint, Curve, LineChart, Panel
from hpcbench.views.table import Cell, Column, Group, Line, Range, Row, Show, Table

_READ = (Column("source", "source"), Column("ranks", "ranks"), Column("devices", "devices"),
         Column("why", "not read because", optional=True))
_USED = (
    Column("case", "case"),
    Column("window", "window", Show.DURATION, "a pass", "from the reading before it to the one "
           "after it: with set-up, warm-ups and checks"),
    Column("energy", "energy", Show.NUMBER, "J", better="less", optional=True),
    Column("power", "mean power", Show.NUMBER, "W", optional=True),
    Column("clock", "clock", Show.NUMBER, "MHz", "of GPUs, else of cores", optional=True),
    Column("throttled", "throttled", optional=True),
    Column("cpu", "CPU time", Show.DURATION, "", "of all workers", optional=True),
    Column("wait", "no core", Show.DURATION, "", "time in which their main threads were ready and "
           "waited for a core", optional=True),
    Column("steal", "stolen", Show.PERCENT, "%", "of the nodes' core time, by a hypervisor",
           optional=True),
    Column("sent", "sent", Show.MB, "MB", "by interfaces, loopback included", optional=True),
    Column("nvlink", "NVLink", Show.MB, "MB", optional=True),
    Column("computed", "computed", Show.MB, "MB", "what all ranks send by formulas",
           optional=True),
    Column("dropped", "dropped", Show.NUMBER, "packets", better="less", optional=True),
)


def telemetry_tables(results: Results) -> Iterator[Table]:
    """Yield what was read, and what cases used; nothing where nothing was to be read."""
    if not results.told:
        return
    told = _newest(results)
    rows = [*_read_rows(told), *_missing_rows(told)]
    yield Table("telemetry: what was read of the machine (docs/telemetry.md)", _READ,
                (Group("", tuple(rows)),))
    used = [(item, item.usage) for item in results.cases if item.usage is not None]
    if used:
        yield Table("what a pass of each case used of the machine", _USED, (
            Group("", tuple(_used_row(item, usage) for item, usage in used)),),
            notes=(Line("counters of a node are of all its processes", "quiet"),))


def telemetry_line(results: Results) -> str:
    """Return what could not be read and why in one line; "" where all was, or nothing wanted."""
    missing = grouped((name, why) for one in _newest(results) for name, why in one.missing.items()
                      if name in TABLES and not why.startswith("not wanted"))
    if not missing:
        return ""
    return "telemetry cannot read " + "; ".join(
        f"{name} ({reasons[0]})" for name, reasons in missing.items())


def _newest(results: Results) -> list[RankTold]:
    newest = max((one.attempt for one in results.told), default=0)
    return [one for one in results.told if one.attempt == newest]


def _read_rows(told: list[RankTold]) -> Iterator[Row]:
    for table in TABLES:
        same = grouped((one.devices[table], one.rank) for one in told if table in one.devices)
        for devices, ranks in same.items():
            yield Row((table, rank_list(ranks), ", ".join(devices), None))


def _missing_rows(told: list[RankTold]) -> Iterator[Row]:
    same = grouped(((name, why), one.rank) for one in told for name, why in one.missing.items())
    for (name, why), ranks in same.items():
        yield Row((name, rank_list(ranks), None, why))


def _used_row(item: CaseResult, usage: Usage) -> Row:
    clock: Cell = None
    if usage.clock_low_mhz is not None and usage.clock_high_mhz is not None:
        clock = Range(usage.clock_low_mhz, usage.clock_high_mhz)
    throttled = None if usage.throttled is None else ", ".join(usage.throttled_by) or "no"
    return Row((item.case.label, usage.window_s, usage.energy_j, usage.mean_power_w, clock,
                throttled, usage.cpu_s, usage.wait_s, usage.steal_share, usage.sent_bytes,
                usage.nvlink_bytes, usage.computed_bytes, usage.dropped),
               item.status, item.case.case_id)


MOST_LINES = 6


def telemetry_chart(results: Results, source: SampleSource) -> LineChart | None:
    """Return the chart of the newest attempt; None where neither power nor cores were read."""
    found = [(title, show, unit, [*lines]) for title, show, unit, lines in (
        ("power", Show.NUMBER, "W", powers(source.courses)),
        ("busy cores", Show.SIGNIFICANT_PERCENT, "% of the node's", core_use(source.courses)))]
    begun = [line.points[0].time_ns for *_, lines in found for line in lines if line.points]
    if not begun:
        return None
    spans = sorted(span for item in results.cases if item.usage for span in item.usage.spans_ns)
    zero = min(begun)
    shaded = tuple(((begin - zero) / 1e9, (end - zero) / 1e9) for begin, end in spans)
    most = max(len(lines) for *_, lines in found)
    left_out = f" The first {MOST_LINES} of {most} lines." if most > MOST_LINES else ""
    return LineChart(
        title="Power and use of cores during the run", subtitle=f"{len(spans)} runs of cases",
        file_stem="telemetry", case_ids=(),
        notes=("Shaded: a case runs, in two tones in turn. Line: mean of neighbouring readings; "
               f"band: the least and the greatest of them.{left_out} Counters of a node are of all "
               "its processes.",),
        x=Axis("time since the first reading", unit="s"),
        panels=tuple(Panel(Axis(title, show, unit), _lines(lines, zero), title=title.capitalize(),
                           spans=shaded, has_marks=False)
                     for title, show, unit, lines in found if lines))


def _lines(courses: Sequence[ShownCourse], zero: float) -> tuple[Curve, ...]:
    return tuple(Curve(f"rank {course.rank}: {course.device}", tuple(
        ((point.time_ns - zero) / 1e9,
         ChartPoint(point.mean, band=Range(point.least, point.greatest)))
        for point in course.points)) for course in _first(courses))


def _first(courses: Iterable[ShownCourse]) -> list[ShownCourse]:
    return [*courses][:MOST_LINES]

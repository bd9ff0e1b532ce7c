"""Power and the use of cores over time, with the cases marked."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcbench.reduce.courses import ShownCourse, core_use, powers
from hpcbench.reduce.results import Results, SampleSource
from hpcbench.views.chart import Axis, Line, LineChart, Panel, Point
from hpcbench.views.table import Range, Show

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


def _lines(courses: Sequence[ShownCourse], zero: float) -> tuple[Line, ...]:
    return tuple(Line(f"rank {course.rank}: {course.device}", tuple(
        ((point.time_ns - zero) / 1e9, Point(point.mean, band=Range(point.least, point.greatest)))
        for point in course.points)) for course in _first(courses))


def _first(courses: Iterable[ShownCourse]) -> list[ShownCourse]:
    return [*courses][:MOST_LINES]

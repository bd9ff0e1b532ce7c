"""A history for readers: sentences, tables, charts, a document for the report, and plain values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from typing import Any

from hpcbench.answers.compare_inputs import SideDifference
from hpcbench.answers.compare_tables import change_text
from hpcbench.fleet.history.change_points import FEWEST
from hpcbench.fleet.history.series import (
    DRIFT,
    STATES,
    STEP,
    Fingerprint,
    RunHistory,
    Series,
    SeriesChange,
    sort_of,
)
from hpcbench.report.document import ReportDocument, ReportSection
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Axis, ChartPoint, Curve, LineChart, Panel
from hpcbench.views.labels import without_shared
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

SCHEMA = "hpcbench.history"
MOST_FACTS = 3
"""Differences that a row of a table names; the others are counted."""
MOST_CHARTS = 40
_ACROSS = 3
"""Small charts beside one another."""
_DAY_S = 86_400.0
_SORTS = {STEP: "step, same fingerprint", DRIFT: "slow drift", STATES: "two states, in turn"}
_CHANGES = (
    Column("since", "since"), Column("run", "first run"), Column("case", "case"),
    Column("metric", "metric", optional=True),
    Column("change", "change (95 % CI)"), Column("what", "what"),
    Column("p", "p"),
    Column("beside", "changed beside", optional=True,
           meaning="what of the environment differs from that run on"))
_PRINTS = (Column("number", "fingerprint", Show.COUNT), Column("runs", "runs", Show.COUNT),
           Column("since", "since"), Column("until", "until"),
           Column("sort", "differs in", optional=True),
           Column("facts", "from the one before", optional=True))


def day(began_s: float) -> str:
    return f"{datetime.fromtimestamp(began_s, timezone.utc):%Y-%m-%d}"


def summary(history: RunHistory) -> str:
    """Return how many runs, series and changes there are, in one sentence."""
    runs = history.stored.runs
    worse = sum(change.is_worse for change in history.changes)
    return (f"{plural(len(runs), 'run')} from {day(runs[0].began_s)} to {day(runs[-1].began_s)} "
            f"(UTC), {len(history.series)} series, "
            f"{plural(len(history.fingerprints), 'fingerprint')}: "
            f"{plural(len(history.changes), 'change')}, {worse} for the worse")


def doubts(history: RunHistory) -> Iterator[str]:
    """Yield what the history cannot tell, and which runs it lacks."""
    stored = history.stored
    if history.too_short:
        yield (f"{history.too_short} of {len(history.series)} series: fewer than "
               f"{FEWEST} runs of one fingerprint, in which no step can be found")
    if stored.unmeasured:
        counts = ", ".join(f"{count} {status}" for status, count in sorted(
            stored.unmeasured.items()))
        yield f"cases of runs without a value: {counts}"
    if stored.left_out:
        yield f"left out: {plural(len(stored.left_out), 'file')}"


def difference_text(differences: Sequence[SideDifference]) -> str:
    shown = [f"{one.key} {one.values[0]} -> {one.values[1]}" for one in differences[:MOST_FACTS]]
    more = len(differences) - MOST_FACTS
    return ", ".join([*shown, *([f"{more} more"] if more > 0 else [])])


def p_text(chance: float) -> str:
    return f"{chance:.4f}" if chance >= 1e-4 else "<0.0001"


def what(change: SeriesChange) -> str:
    """Return what a change is, in words that blame no node."""
    return _SORTS.get(change.sort, f"{change.sort} changed")


def change_table(history: RunHistory) -> Table:
    """Return a row for each change, the oldest first."""
    several = len({one.metric for one in history.series}) > 1
    shared, names = without_shared([change.series.label for change in history.changes])
    rows = tuple(Row((
        day(change.first.began_s), change.first.run_id, name,
        change.series.metric if several else None,
        change_text(change.size.map(lambda share: 1 + share)), what(change),
        p_text(change.chance), difference_text(change.environment) or None),
        "wrong" if change.is_worse else "ok")
        for change, name in zip(history.changes, names, strict=True))
    lead = (Line(shared, "quiet"),) if shared and rows else ()
    return Table("changes", _CHANGES, (Group("", rows),), lead=lead)


def fingerprint_table(history: RunHistory) -> Table:
    """Return a row for each fingerprint, and what differs from the one before it."""
    rows = []
    for before, one in zip([None, *history.fingerprints], history.fingerprints, strict=False):
        differing = one.differences(before) if before else ()
        rows.append(Row((one.number, len(one.runs), day(one.runs[0].began_s),
                         day(one.runs[-1].began_s),
                         " and ".join(sorted({sort_of(each.key) for each in differing})) or None,
                         difference_text(differing) or None)))
    return Table("fingerprints: runs with the same software, hardware and placement", _PRINTS,
                 (Group("", tuple(rows)),))


def _axis(series: Series) -> Axis:
    if series.metric.endswith("_bytes_per_s"):
        return Axis(series.metric.removesuffix("_bytes_per_s"), Show.GB_PER_S, "GB/s")
    if series.metric.endswith("_s") and not series.more_is_better:
        return Axis("median time" if series.metric == "median_s" else series.metric, Show.US, "us")
    return Axis(series.metric, Show.NUMBER)


def _panel(series: Series, changes: Sequence[SeriesChange], origin_s: float, title: str) -> Panel:
    """Return the values of a series over days, a curve a fingerprint, shaded from change to change.
    """
    days = [(run.began_s - origin_s) / _DAY_S for run in series.runs]
    points = grouped((number, (at, ChartPoint(value))) for at, value, number in zip(
        days, series.values, series.fingerprints, strict=True))
    ends = sorted({days[change.at] for change in changes
                   if change.sort not in (DRIFT, STATES)})
    bounds = [days[0], *ends, days[-1]]
    return Panel(_axis(series), tuple(
        Curve(f"fingerprint {number}", tuple(sorted(dict(found).items())), is_joined=False)
        for number, found in points.items()), title,
        spans=tuple(zip(bounds, bounds[1:], strict=False)) if ends else ())


def _chart(
    panels: Sequence[Panel], title: str, subtitle: str, number: int, history: RunHistory,
) -> LineChart:
    origin = day(history.stored.runs[0].began_s)
    return LineChart(title, subtitle, f"history-{number:03}", (), (),
                     Axis("days", Show.NUMBER, f"since {origin}"), tuple(panels))


def charts(history: RunHistory) -> Iterator[LineChart]:
    """Yield a chart for each series that changes, then all series in rows of small charts."""
    origin_s = history.stored.runs[0].began_s
    changes = grouped(((one.series.key, one.series.metric), one) for one in history.changes)
    changed = [one for one in history.series if (one.key, one.metric) in changes]
    number = 0
    for number, series in enumerate(changed[:MOST_CHARTS], 1):
        found = changes[series.key, series.metric]
        texts = [f"{change_text(one.size.map(lambda share: 1 + share))} since "
                 f"{day(one.first.began_s)}: {what(one)}" for one in found]
        yield _chart([_panel(series, found, origin_s, "")], series.label, "; ".join(texts), number,
                     history)
    for start in range(0, len(history.series), _ACROSS):
        row = history.series[start:start + _ACROSS]
        shared, names = without_shared([one.label for one in row])
        yield _chart([_panel(one, changes.get((one.key, one.metric), ()), origin_s, name)
                      for one, name in zip(row, names, strict=True)],
                     shared or "series", "all runs; shades end where the series changes",
                     number + 1 + start // _ACROSS, history)


def document(history: RunHistory, folders: str) -> ReportDocument:
    """Return the report of a history."""
    drawn = [*charts(history)]
    n_changed = sum(len(chart.panels) == 1 and bool(chart.subtitle) for chart in drawn)
    n_changed = min(n_changed, len(drawn) - -(-len(history.series) // _ACROSS))
    changes = change_table(history) if history.changes else Line("No series changes.")
    lines = [Line(text, "quiet") for text in doubts(history)]
    left_out = tuple(Line(text) for text in history.stored.left_out)
    sections = (
        ReportSection("changes", "Changes", (Line(summary(history), "title"), changes, *lines)),
        ReportSection("fingerprints", "Fingerprints", (fingerprint_table(history),)),
        ReportSection("changed", "Series that change", tuple(drawn[:n_changed])),
        ReportSection("all", "All series", tuple(drawn[n_changed:])),
        ReportSection("left-out", "Files left out", left_out))
    return ReportDocument("History", folders, tuple(one for one in sections if one.items))


def plain(history: RunHistory) -> dict[str, Any]:
    """Return the history as plain JSON values; times are seconds since 1970 and texts in UTC."""
    return {
        "schema": SCHEMA, "schema_version": 1,
        "runs": [{"run_id": run.run_id, "began_s": run.began_s, "path": run.path}
                 for run in history.stored.runs],
        "fingerprints": [_plain_print(one, before) for before, one in zip(
            [None, *history.fingerprints], history.fingerprints, strict=False)],
        "series": [{"case": one.label, "metric": one.metric,
                    "better": "more" if one.more_is_better else "less",
                    "points": [{"run_id": run.run_id, "value": value, "fingerprint": number}
                               for run, value, number in zip(
                                   one.runs, one.values, one.fingerprints, strict=True)]}
                   for one in history.series],
        "changes": [{"case": one.series.label, "metric": one.series.metric, "what": one.sort,
                     "first_run": one.first.run_id, "began_s": one.first.began_s,
                     "change": one.size.value, "low": one.size.low, "high": one.size.high,
                     "p": one.chance, "is_worse": one.is_worse,
                     "environment": _plain_facts(one.environment)} for one in history.changes],
        "doubts": [*doubts(history)], "left_out": [*history.stored.left_out]}


def _plain_print(one: Fingerprint, before: Fingerprint | None) -> dict[str, Any]:
    return {"number": one.number, "runs": [run.run_id for run in one.runs],
            "differs": _plain_facts(one.differences(before)) if before else {}}


def _plain_facts(differences: Sequence[SideDifference]) -> dict[str, list[str]]:
    return {one.key: [*one.values] for one in differences}

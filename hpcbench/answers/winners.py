"""The clearly fastest of comparable rows, marked in charts and tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbench.answers.recommend import Recommendations
from hpcbench.views.chart import Bar, BarChart, Chart, Dot, DotChart
from hpcbench.views.table import Column, Row, Table

FASTEST = "fastest"
_NOTE = ("Bold, fastest: clearly faster than each other row that does the same "
         "(hpcbench advise --only recommend).")
Winners = Mapping[str, frozenset[str]]
"""Id of a case that is clearly the fastest of its task -> those of the others of the task."""


def winners_of(found: Recommendations) -> Winners:
    """Return the cases beside which each other way of the same task is clearly slower."""
    return {one.case_id: frozenset(rival.case_id for rival in one.rivals)
            for one in found.rankings
            if one.rivals and all(rival.is_clear for rival in one.rivals)}


def winners_among(records: Iterable[object]) -> Winners:
    """Return those of topic recommend, one of the records of several topics."""
    return {best: others for record in records if isinstance(record, Recommendations)
            for best, others in winners_of(record).items()}


def with_winners(chart: Chart, winners: Winners) -> Chart:
    """Return the chart with the clearly fastest of its comparable rows marked."""
    if isinstance(chart, DotChart):
        at = _winner(chart.rows, winners)
        return chart if at is None else replace(chart, notes=(*chart.notes, _NOTE), rows=tuple(
            replace(row, mark=FASTEST) if row is chart.rows[at] else row for row in chart.rows))
    if isinstance(chart, BarChart):
        best = [_winner(section.bars, winners) for section in chart.sections]
        if all(at is None for at in best):
            return chart
        sections = tuple(section if at is None else replace(section, bars=tuple(
            replace(bar, mark=FASTEST) if bar is section.bars[at] else bar
            for bar in section.bars)) for section, at in zip(chart.sections, best, strict=True))
        return replace(chart, sections=sections, notes=(*chart.notes, _NOTE))
    return chart


def _winner(rows: Sequence[Dot | Bar], winners: Winners) -> int | None:
    """Return the index of the only winner with a rival among the rows; else None."""
    ids = [row.case_id for row in rows]
    found = [at for at, one in enumerate(ids) if winners.get(one, frozenset()) & {*ids}]
    return found[0] if len(found) == 1 else None


_TIMED = {"time_p50", "step_p50", "time"}


def with_fastest(table: Table, winners: Winners) -> Table:
    """Return a table of times that names the clearly fastest of its rows, or of a row's spans."""
    ids = {one for row in table.rows for one in (
        row.case_id, *(case_id for _, case_id in row.of_spans))}
    best = {one for one in ids if one and winners.get(one, frozenset()) & ids}
    if not best or not _TIMED & {column.name for column in table.columns}:
        return table

    def mark(row: Row) -> str:
        spans = [f"{span} {FASTEST}" for span, one in row.of_spans if one in best]
        return FASTEST if row.case_id in best else ", ".join(spans)

    return replace(table, columns=(*table.columns, Column("fastest", "")), groups=tuple(
        replace(group, rows=tuple(replace(row, cells=(*row.cells, mark(row)))
                                  for row in group.rows)) for group in table.groups))

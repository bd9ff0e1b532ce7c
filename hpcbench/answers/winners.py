"""The clearly fastest of comparable rows, marked in charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from hpcbench.answers.recommend import Recommendations
from hpcbench.views.chart import Bar, BarChart, Chart, Dot, DotChart

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

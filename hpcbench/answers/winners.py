"""The clearly fastest of comparable rows, marked in charts and tables."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace

from hpcbench.answers.recommend import Ranking, Recommendations
from hpcbench.views.chart import Bar, BarChart, Chart, Dot, DotChart
from hpcbench.views.table import Column, Row, Table

FASTEST = "fastest"
_NOTE = ("Bold, fastest: clearly faster than each other row that does the same "
         "(hpcbench advise --only recommend).")
Winners = Mapping[str, tuple[frozenset[str], frozenset[str]]]
"""Id of a case -> those that are clearly slower, and all others that do the same work."""


def winners_of(rankings: Iterable[Ranking]) -> Winners:
    """Return the cases beside which others of the same work are clearly slower.

    Rankings that share a case are of one work. Two cases that no ranking has both differ clearly
    where one is clearly slower than a case that is clearly slower than the other."""
    works: dict[str, set[str]] = {}
    slower: dict[str, set[str]] = {}
    undecided: dict[str, set[str]] = {}
    for one in rankings:
        ids = {one.case_id, *(rival.case_id for rival in one.rivals)}
        work = set[str]().union(ids, *(works.get(case_id, ids) for case_id in ids))
        works |= dict.fromkeys(work, work)
        for rival in one.rivals:
            (slower if rival.is_clear else undecided).setdefault(
                one.case_id, set()).add(rival.case_id)
    return {best: (frozenset(_reached(best, slower) - undecided.get(best, set())),
                   frozenset(works[best] - {best})) for best in slower}


def _reached(best: str, slower: Mapping[str, Collection[str]]) -> set[str]:
    """Return the ids to which steps lead from a case to one that is clearly slower."""
    reached, ahead = set[str](), [best]
    while ahead:
        new = {*slower.get(ahead.pop(), ())} - reached
        reached |= new
        ahead += new
    return reached - {best}


def winners_among(records: Iterable[object]) -> Winners:
    """Return those of topic recommend, one of the records of several topics."""
    return winners_of(one for record in records if isinstance(record, Recommendations)
                      for one in record.rankings)


def _fastest(ids: Collection[str], winners: Winners) -> set[str]:
    """Return those of some cases beside which each other of them of the same work is slower."""
    nothing = frozenset[str](), frozenset[str]()
    return {one for one in ids for slower, others in [winners.get(one, nothing)]
            if others & {*ids} and others & {*ids} <= slower}


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
    best = _fastest(ids, winners)
    return ids.index(best.pop()) if len(best) == 1 else None


_TIMED = {"time_p50", "step_p50", "time"}


def with_fastest(table: Table, winners: Winners) -> Table:
    """Return a table of times that names the clearly fastest of its rows, or of a row's spans."""
    best = _fastest({one for row in table.rows for one in (
        row.case_id, *(case_id for _, case_id in row.of_spans)) if one}, winners)
    if not best or not _TIMED & {column.name for column in table.columns}:
        return table

    def mark(row: Row) -> str:
        spans = [f"{span} {FASTEST}" for span, one in row.of_spans if one in best]
        return FASTEST if row.case_id in best else ", ".join(spans)

    return replace(table, columns=(*table.columns, Column("fastest", "")), groups=tuple(
        replace(group, rows=tuple(replace(row, cells=(*row.cells, mark(row)))
                                  for row in group.rows)) for group in table.groups))

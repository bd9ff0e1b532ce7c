"""The tables of a run: of each block as its kind presents it, then those of all blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.registry import presenter_of
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.results_lines import items_by_kind
from hpcbench.units import grouped
from hpcbench.views.columns import any_results
from hpcbench.views.table import Table


def tables_of(results: Results) -> Iterator[Table]:
    """Yield the tables of all blocks in the order of the plan, then the overviews of each kind."""
    yield from _blocks(results, results.cases)
    below = [table for kind, items in items_by_kind(results.cases).items()
             for table in _overviews(results, kind, items)]
    yield from (table for table in below if table.columns)
    remarks = grouped((table.lead, table.title) for table in below if not table.columns)
    yield from (Table(", ".join(titles), (), (), lead) for lead, titles in remarks.items())


def tables_of_kind(results: Results, kind: str) -> Iterator[Table]:
    """Yield the tables of the blocks of one kind, then its overviews."""
    items = [item for item in results.cases if item.case.kind == kind]
    yield from _blocks(results, items)
    yield from _overviews(results, kind, items)


def _blocks(results: Results, items: Sequence[CaseResult]) -> Iterator[Table]:
    """Yield the tables of each block, the cases of which are all of one kind."""
    blocks = grouped(((item.case.block, item.case.kind), item) for item in items)
    presenters = {kind: _presenter(results, kind) for _, kind in blocks}
    # a case that the plan skips, such as one of more ranks than the job has, stands first in it
    planned = dict.fromkeys((item.case.block, item.case.kind) for item in items
                            if item.case.skip is None)
    for block, kind in dict.fromkeys((*planned, *blocks)):
        title, same = f"block {block}", blocks[block, kind]
        tables = presenters[kind].tables(title, same, results.derived.get(kind, {}))
        yield from any_results(title, same) if tables is None else tables


def _overviews(results: Results, kind: str, items: Sequence[CaseResult]) -> Iterator[Table]:
    yield from _presenter(results, kind).overviews(items, results.derived.get(kind, {}))


def _presenter(results: Results, kind: str) -> Presenter[Any, Any]:
    """Return a kind's presenter; without records of its kind a case is one of any kind."""
    return Presenter() if kind in results.missing_kinds else presenter_of(kind)

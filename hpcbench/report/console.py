"""Prints plans and results; the same text on a terminal (in colour) and in a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any

from rich.text import Text

from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Plan
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.outcome_lines import closing_lines, finding_lines, outcome_lines
from hpcbench.report.plan_lines import case_tables, plan_header, skip_lines
from hpcbench.report.quality_lines import quality_lines
from hpcbench.report.run_lines import run_lines
from hpcbench.report.spans import items_by_kind
from hpcbench.report.table_lines import table_lines
from hpcbench.report.terminal import open_console
from hpcbench.views.any_kind import any_results


def print_plan(plan: Plan) -> None:
    """Print cases, order, skips and the estimate of a plan."""
    _print(chain(plan_header(plan), case_tables(plan), skip_lines(plan)))


def print_results(results: Results, folder: Path) -> None:
    """Print a run's tables, their quality, what was not ok and why, totals and files."""
    _print(chain(run_lines(results), _result_tables(results), quality_lines(results),
                 outcome_lines(results), finding_lines(results), closing_lines(results, folder)))


def _result_tables(results: Results) -> Iterator[Text]:
    """Yield the tables of all blocks, the cases of each of which are all of one kind."""
    blocks: dict[tuple[str, str], list[CaseResult]] = defaultdict(list)
    for item in results.cases:
        blocks[item.case.block, item.case.kind].append(item)
    for (block, kind), items in blocks.items():
        presenter, title = _presenter(results, kind), f"block {block}"
        tables = presenter.tables(title, items, results.derived.get(kind, {}))
        for table in any_results(title, items) if tables is None else tables:
            yield from table_lines(table)
    for kind, items in items_by_kind(results.cases).items():
        for table in _presenter(results, kind).overviews(items, results.derived.get(kind, {})):
            yield from table_lines(table)
    for kind in items_by_kind(results.cases):
        if problem := presenter_of(kind).problem:
            yield Text(f"kind {kind}: {problem}", style="yellow")
    for kind, reason in results.missing_kinds.items():
        yield Text(f"kind {kind} {reason}; its rows lack what the kind derives (docs/plugins.md)",
                   style="yellow")


def _presenter(results: Results, kind: str) -> Presenter[Any, Any]:
    """Return the kind's presenter; what presents any kind where there are no records of it."""
    presenter = presenter_of(kind)
    return Presenter(presenter.problem) if kind in results.missing_kinds else presenter


def _print(lines: Iterable[Text]) -> None:
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)  # soft: a narrow terminal wraps, nothing is cut

"""Prints plans and results; the same text on a terminal (in colour) and in a log."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.grouping import grouped
from hpcbench.kinds.kind import Presenter
from hpcbench.kinds.registry import presenter_of
from hpcbench.plan.case import Plan
from hpcbench.reduce.results import Results
from hpcbench.report import results_lines as lines
from hpcbench.report.plan_lines import case_tables, plan_header, skip_lines
from hpcbench.report.table_lines import table_lines
from hpcbench.report.terminal import print_lines
from hpcbench.views.columns import any_results
from hpcbench.views.table import Table


def print_plan(plan: Plan) -> None:
    """Print cases, order, skips and the estimate of a plan."""
    print_lines(chain(plan_header(plan), case_tables(plan), skip_lines(plan)))


def print_results(results: Results, folder: Path) -> None:
    """Print a run's tables, their quality, what was not ok and why, totals and files."""
    print_lines(chain(
        lines.run_lines(results), chain.from_iterable(map(table_lines, _tables(results))),
        _problem_lines(results), lines.quality_lines(results), lines.outcome_lines(results),
        lines.finding_lines(results), lines.closing_lines(results, folder)))


def print_profiles(profile_lines: Sequence[str]) -> None:
    """Print what came of the profiled samples."""
    if profile_lines:
        print_lines([Text(""), *map(Text, profile_lines)])


def _tables(results: Results) -> Iterator[Table]:
    """Yield the tables of all blocks, the cases of each of which are all of one kind."""
    blocks = grouped(((item.case.block, item.case.kind), item) for item in results.cases)
    # without records of its kind a case is presented as one of any kind
    presenters = {kind: Presenter() if kind in results.missing_kinds else presenter_of(kind)
                  for _, kind in blocks}
    for (block, kind), items in blocks.items():
        title = f"block {block}"
        tables = presenters[kind].tables(title, items, results.derived.get(kind, {}))
        yield from any_results(title, items) if tables is None else tables
    for kind, items in lines.items_by_kind(results.cases).items():
        yield from presenters[kind].overviews(items, results.derived.get(kind, {}))


def _problem_lines(results: Results) -> Iterator[Text]:
    """Yield what is wrong with kinds of plug-ins."""
    for kind in lines.items_by_kind(results.cases):
        if problem := presenter_of(kind).problem:
            yield Text(f"kind {kind}: {problem}", style="yellow")
    for kind, reason in results.missing_kinds.items():
        yield Text(f"kind {kind} {reason}; its rows lack what the kind derives (docs/plugins.md)",
                   style="yellow")

"""Prints plans and results; the same text on a terminal (in colour) and in a log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.plan.case import Plan
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plan_lines import case_table, plan_header, skip_lines
from hpcbench.report.primitive_lines import primitive_lines
from hpcbench.report.quality_lines import quality_lines
from hpcbench.report.result_lines import (
    block_lines,
    closing_lines,
    finding_lines,
    outcome_lines,
    run_lines,
)
from hpcbench.report.terminal import open_console


def print_plan(plan: Plan) -> None:
    """Print cases, order, skips and the estimate of a plan."""
    _print(chain(plan_header(plan), case_table(plan), skip_lines(plan)))


def print_results(results: Results, folder: Path) -> None:
    """Print a run's tables, their quality, what was not ok and why, totals and files."""
    blocks = dict.fromkeys(item.case.block for item in results.cases)
    tables = (
        _table(block, [item for item in results.cases if item.case.block == block])
        for block in blocks
    )
    _print(chain(run_lines(results), *tables, quality_lines(results), outcome_lines(results),
                 finding_lines(results), closing_lines(results, folder)))


def _table(block: str, items: Sequence[CaseResult]) -> Iterator[Text]:
    """Return the lines of a block, whose cases are all of one kind."""
    is_primitive = items[0].case.kind == "primitive"
    return primitive_lines(block, items) if is_primitive else block_lines(block, items)


def _print(lines: Iterable[Text]) -> None:
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)  # soft: a narrow terminal wraps, nothing is cut

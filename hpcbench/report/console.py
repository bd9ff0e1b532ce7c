"""Prints plans and results; the same text on a terminal (in colour) and in a log."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from itertools import chain
from pathlib import Path

from rich.text import Text

from hpcbench.kinds.primitive.derive.partners import compare
from hpcbench.kinds.primitive.present.result_lines import primitive_lines
from hpcbench.kinds.training.derive.scaling import scaling
from hpcbench.kinds.training.present.result_lines import training_lines
from hpcbench.kinds.training.present.scaling import scaling_lines
from hpcbench.plan.case import Plan
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plan_lines import case_table, plan_header, skip_lines
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
    _print(chain(run_lines(results), _table_lines(results), quality_lines(results),
                 outcome_lines(results), finding_lines(results), closing_lines(results, folder)))


def _table_lines(results: Results) -> Iterator[Text]:
    """Yield the tables of all blocks, the cases of each of which are all of one kind."""
    blocks: dict[str, list[CaseResult]] = defaultdict(list)
    for item in results.cases:
        blocks[item.case.block].append(item)
    comparisons = compare(results.cases)
    for block, items in blocks.items():
        if items[0].case.kind == "primitive":
            yield from primitive_lines(block, items, comparisons)
        elif items[0].case.kind == "training":
            yield from training_lines(block, items, results)
        else:
            yield from block_lines(block, items)
    yield from scaling_lines(scaling(results.cases))


def _print(lines: Iterable[Text]) -> None:
    console = open_console()
    for line in lines:
        console.print(line, soft_wrap=True)  # soft: a narrow terminal wraps, nothing is cut

"""What is printed of a comparison."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter
from rich.text import Text

from hpcbench.analysis.compare import scope_of
from hpcbench.errors import UsageError
from hpcbench.report.table_lines import table_lines
from hpcbench.report.terminal import print_document, print_lines
from hpcbench.verbosity import Verbosity
from hpcbench.views.comparison import (
    comparison_table,
    difference_table,
    needed_line,
    totals_line,
    unmatched_table,
)

if TYPE_CHECKING:
    from hpcbench.analysis.answers import Compared

SCHEMA = "hpcbench.compare"
IMAGES = (".png", ".svg", ".pdf")


def check_plot_name(path: Path) -> None:
    """Raise UsageError for a name of a figure that does not say what it is."""
    if path.suffix not in IMAGES:
        raise UsageError(f"--plot {path}: the name must end with {', '.join(IMAGES)}")


def print_comparisons(answer: Compared, verbosity: Verbosity) -> None:
    """Print a table for each side, what else differs, and the totals; quietly only the totals."""
    if verbosity.is_quiet:
        print_lines(Text(f"{one.second}: {totals_line(one)}") for one in answer.comparisons)
        return
    print_lines(_lines(answer, full=verbosity.is_verbose))


def print_comparisons_json(answer: Compared) -> None:
    """Print the whole answer as JSON; ratios are of times, second side over the first."""
    plain = TypeAdapter(type(answer)).dump_python(answer, mode="json")
    print_document({"schema": SCHEMA, "schema_version": 1, **plain})


def _lines(answer: Compared, *, full: bool) -> Iterator[Text]:
    for text in dict.fromkeys(filter(None, map(needed_line, answer.comparisons))):
        yield Text(text)
    for one in answer.comparisons:
        yield from table_lines(comparison_table(one, full=full))
        left_out = unmatched_table(one)
        if left_out:
            yield from table_lines(left_out)
    other = difference_table(answer.differences, answer.sides, full=full)
    if other:
        yield from table_lines(other)
    yield Text()
    if answer.in_launch:
        yield Text("medians of the same pass were compared: what is said holds in this launch")
    scopes = (scope_of(one.cases) for one in answer.comparisons)
    for scope in dict.fromkeys(filter(None, scopes)):
        yield Text(f"{scope}: two jobs of equal code may differ by as much; to generalise, run "
                   "both in turn at other times and compare A1,A2,... B1,B2,...")
    for one in answer.comparisons:
        yield Text(f"{one.second}: {totals_line(one)}", style="bold")

"""What differs between runs, as the first section of their report."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.analysis.answer import Run
from hpcbench.analysis.answers import Compared, compare_sides
from hpcbench.analysis.compare import INCONCLUSIVE, SMALLEST
from hpcbench.errors import UsageError
from hpcbench.views.comparison import (
    comparison_chart,
    comparison_table,
    difference_table,
    totals_line,
    unmatched_table,
)
from hpcbench.views.document import Item, Section
from hpcbench.views.table import Line

_NEXT = ("next: where launches cannot tell, run each side with as many launches as are needed (key "
         "launches of the sweep file), and compare again")


def differences_section(runs: Sequence[Run], *, full: bool) -> Section:
    """Return each other run beside the first, ``full`` with all cases.

    That nothing matches is a line.
    """
    try:
        items = tuple(_items(compare_sides([run.path for run in runs], SMALLEST), full=full))
    except UsageError as error:
        items = (Line(str(error), "warning"),)
    return Section("differences", "Differences", items)


def _items(found: Compared, *, full: bool) -> Iterator[Item]:
    for one in found.comparisons:
        yield Line(f"{one.second} beside {one.first}: {totals_line(one)}", "title")
        yield comparison_table(one, full=full)
        if (unmatched := unmatched_table(one)) is not None:
            yield unmatched
        if (chart := comparison_chart(one)) is not None:
            yield chart
    if any(case.more_launches for one in found.comparisons for case in one.having(INCONCLUSIVE)):
        yield Line(_NEXT, "quiet")
    if (table := difference_table(found.differences, found.sides, full=full)) is not None:
        yield table

"""What a report says of ranks that start late, and of how it tells."""

from __future__ import annotations

from collections.abc import Iterator

from hpcbench.reduce.comparison import FALSE_ALARMS, NEEDED, Comparison, family
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.settling import comparisons
from hpcbench.units import plural
from hpcbench.views.cell_text import cell_text
from hpcbench.views.table import Show

MOST_NAMED = 5


def late_start(item: CaseResult) -> Comparison | None:
    """Return the rank of a case that surely starts later than any other; None if there is none."""
    late = item.timing.late_start if item.timing else None
    return late if late is not None and late.is_clear else None


def late_start_text(late: Comparison) -> str:
    """Return who starts late, and by how much."""
    ends = f"{cell_text(late.low_s, Show.US)}, {cell_text(late.high_s, Show.US)}"
    return (f"rank {late.rank} starts {cell_text(late.apart_s, Show.US)} us [{ends}: 99 % "
            f"interval] after the next one, rank {late.next_rank}: all wait for it")


def _late_starts(results: Results) -> list[tuple[CaseResult, Comparison]]:
    return [(item, found) for item in results.cases if (found := late_start(item)) is not None]


def late_rank_lines(results: Results) -> Iterator[str]:
    """Yield in one line who surely starts late in the first such case, and how many more there are.

    Nothing where nobody does.
    """
    late = _late_starts(results)
    if late:
        (item, found), *others = late
        more = f"; {plural(len(others), 'more case')}: late_start in summary.json" if others else ""
        yield f"{item.case.label}: {late_start_text(found)}{more}"


def slow_rank_lines(results: Results) -> Iterator[str]:
    """Yield which comparisons of ranks were made and how many hold; then who starts late."""
    known = family(comparisons(results))
    if known.n_made:
        yield (f"slow ranks: {plural(known.n_made, 'comparison')}, {known.n_clear} of them clear; "
               f"of equal ranks at most {FALSE_ALARMS:.0%} of reports have any")
    if known.n_too_few:
        yield (f"slow ranks: {plural(known.n_too_few, 'comparison')} cannot tell, because {NEEDED}")
    late = _late_starts(results)
    for item, found in late[:MOST_NAMED]:
        yield f"  {item.case.label}: {late_start_text(found)}"
    if len(late) > MOST_NAMED:
        yield f"  and {plural(len(late) - MOST_NAMED, 'more case')}: see late_start in summary.json"

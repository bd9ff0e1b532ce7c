"""Comparisons of ranks with equal work, and multiple-testing correction over a report
(docs/method.md)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from hpcbench.records import dataclass
from hpcbench.statistics.hypothesis_tests import MIN_PASSES, MIN_STEPS, Times, find_slowest, holm

FALSE_ALARMS = 0.01
"""The largest share of reports in which a rank is named, if all ranks are equal."""
LATE_START = "start"
"""The comparison that cases of all kinds have."""
NEEDED = f"it takes {MIN_PASSES} passes of {MIN_STEPS} samples each"
"""Why a comparison could not be made."""
PRECISE = 0.1
"""A comparison whose interval reaches over this share of a call cannot exclude a late rank."""


@dataclass(frozen=True, slots=True)
class Comparison:
    """The rank that most stands out. ``chance``: p-value of a difference beyond what matters, None
    with too few passes or steps. ``low_s`` to ``high_s`` is the 99 % interval of ``apart_s``, the
    distance to ``next_rank``. ``is_clear``: it holds among all comparisons of the report."""

    what: str
    chance: float | None = None
    rank: int | None = None
    next_rank: int | None = None
    apart_s: float = 0.0
    low_s: float = 0.0
    high_s: float = 0.0
    is_clear: bool = False


def compared(
    what: str, ranks: Sequence[int], medians_s: Times | None, least_s: float, *,
    shortest: bool = False,
) -> Comparison:
    """Return the rank with the longest (``shortest``) times, by more than ``least_s``.
    ``medians_s`` are (rank, pass), None where passes are too few."""
    if medians_s is None:
        return Comparison(what)
    worst = find_slowest(-medians_s if shortest else medians_s, least_s)
    return Comparison(what, worst.chance, ranks[worst.row], ranks[worst.next_row], worst.apart_s,
                      worst.low_s, worst.high_s)


def holm_corrected(comparisons: Sequence[Comparison]) -> Iterator[Comparison]:
    """Yield the comparisons of a report, in order, with whether each holds among them."""
    chances = [one.chance for one in comparisons if one.chance is not None]
    holds = iter(holm(chances, FALSE_ALARMS))
    for test in comparisons:
        yield replace(test, is_clear=test.chance is not None and next(holds))


def comparison_counts(comparisons: Iterable[Comparison]) -> dict[str, int]:
    """Return how many comparisons were made, how many of them hold, how many had too few data."""
    listed = [*comparisons]
    n_made = sum(one.chance is not None for one in listed)
    return {"n_made": n_made, "n_clear": sum(one.is_clear for one in listed),
            "n_too_few": len(listed) - n_made}


def is_open(found: Comparison | None, call_s: float) -> bool:
    """Return whether a rank that is not named may be late by more than `PRECISE` of a call."""
    return found is None or found.chance is None or found.high_s > PRECISE * call_s


def clear(comparisons: Iterable[Comparison], what: str) -> Comparison | None:
    return next((one for one in comparisons if one.what == what and one.is_clear), None)

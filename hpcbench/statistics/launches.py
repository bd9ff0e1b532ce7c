"""What several launches say about the median of the next one.

A launch has conditions of its own (memory, cores, connections) that all of its samples share. More
samples of it do not average them out, so the unit is the launch: each counts with its median. The
intervals are order statistics of these medians and need no distribution. A t interval of two to
five medians does, and is wrong for launches of two modes (benchmarks/error_rates.py).
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.statistics.interval import median_ranks
from hpcbench.statistics.order import Values


@dataclass(frozen=True, slots=True)
class OverLaunches:
    """The least and the greatest median of a launch hold the median over launches with ``level``.

    ``rank`` says which medians are the ends of the interval of the level that was asked for: those
    of this rank from either end. It is None where there are too few launches.
    """

    low: float
    high: float
    level: float
    rank: int | None


def over_launches(medians: Values, level: float) -> OverLaunches:
    """Return what the ``medians`` (launch,) of two launches or more hold.

    All of n medians lie on one side of the median over launches with probability 2 / 2^n. So two
    hold it with 50 %, five with 93.75 %; 95 % takes six.
    """
    ends = median_ranks(medians.size, level)
    return OverLaunches(float(medians.min()), float(medians.max()), 1 - 2.0 ** (1 - medians.size),
                        ends[0] if ends else None)

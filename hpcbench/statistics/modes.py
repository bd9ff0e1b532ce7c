"""Whether values have two modes with their median between them, at a known error rate.

The dip of a sample is how far its distribution is from the nearest unimodal one (Hartigan and
Hartigan, The Dip Test of Unimodality, Annals of Statistics 13, 1985). Of unimodal distributions the
uniform has the largest dips. Values that depend on one another have larger ones, as fewer would.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.interval import Interval
from hpcbench.statistics.order import Values, median

LARGEST_DIP = 0.68
"""sqrt(n) times the dip exceeds it in less than 1 % of uniform samples of any n from `MIN_N` on
(simulated: `benchmarks/flags.py`)."""
MIN_N = 20
"""Fewer independent values do not show two modes."""
LEAST_SHARE = 0.2
"""Of the samples in the smaller mode: the median is between two modes, not at the end of one."""


@dataclass(frozen=True, slots=True)
class Mode:
    """The median of the values of one mode, and their share of all values."""

    median_s: float
    share: float


def modes_around_median(values: Values, interval: Interval | None) -> tuple[Mode, ...]:
    """Return the two modes, the quicker one first, that the median of ``values`` (n,) lies between.

    ``interval`` is that of the median; it reaches from one mode into the other. It also says as how
    many independent values the n count. Nothing is returned where there is no second mode, or where
    the median clearly belongs to one.
    """
    if interval is None or interval.n_blocks < MIN_N or not 0 < values.min() < values.max():
        return ()
    split = best_split(np.sort(np.log(values)))
    lower = values[np.log(values) <= split]
    upper = values[np.log(values) > split]
    if not interval.low <= lower.max() < upper.min() <= interval.high:
        return ()
    if min(lower.size, upper.size) < LEAST_SHARE * values.size:
        return ()
    if dip(values) * math.sqrt(interval.n_blocks) <= LARGEST_DIP:
        return ()
    return tuple(Mode(median(part), part.size / values.size) for part in (lower, upper))


def best_split(ordered: Values) -> float:
    """Return the largest value of the lower of two groups with the least variance within them.

    ``ordered`` (n,) rises and has two different values at least; otherwise the least is returned.
    """
    n = np.arange(1, ordered.size)
    below = np.cumsum(ordered)[:-1]
    between = (below - n * ordered.mean()) ** 2 / (n * (ordered.size - n))
    between[ordered[1:] == ordered[:-1]] = -1.0  # equal values are of one group
    return float(ordered[np.argmax(between)])


def dip(values: Values) -> float:
    """Return the largest difference between the distribution of ``values`` (n,), n > 0, and the
    unimodal one that makes it least.

    Between the greatest convex minorant on the left of a modal interval and the least concave
    majorant on its right; the interval shrinks to where these two are farthest apart. Equal values
    count as spread around theirs: a value that is frequent is no mode of its own.
    """
    x, counts = np.unique(values, return_counts=True)
    middle = (np.cumsum(counts) - counts / 2) / values.size
    before, after = middle - 0.5 / values.size, middle + 0.5 / values.size
    first, last, farthest = 0, x.size - 1, 1 / values.size
    while True:
        inside = slice(first, last + 1)
        convex, concave = _hull(x[inside], before[inside]), _hull(x[inside], -after[inside])
        minorant = np.interp(x[inside], x[inside][convex], before[inside][convex])
        majorant = np.interp(x[inside], x[inside][concave], after[inside][concave])
        apart = majorant - minorant
        widest = int(convex[np.argmax(apart[convex])])
        other = int(concave[np.argmax(apart[concave])])
        if max(apart[widest], apart[other]) <= farthest:
            return farthest / 2
        if apart[widest] >= apart[other]:
            left, right = widest, int(concave[np.searchsorted(concave, widest)])
        else:
            left, right = int(convex[np.searchsorted(convex, other, side="right") - 1]), other
        farthest = max(farthest, float((after[inside] - minorant)[:left + 1].max()),
                       float((majorant - before[inside])[right:].max()))
        if (left, right) == (0, last - first):
            return farthest / 2
        first, last = first + left, first + right


def _hull(x: Values, y: Values) -> npt.NDArray[np.int64]:
    """Return the indices of the points on the lower convex hull; ``x`` rises strictly."""
    kept: list[int] = []
    xs, ys = x.tolist(), y.tolist()
    for new in range(len(xs)):
        while len(kept) > 1:
            middle, start = kept[-1], kept[-2]
            if (ys[middle] - ys[start]) * (xs[new] - xs[middle]) < (
                    ys[new] - ys[middle]) * (xs[middle] - xs[start]):
                break
            kept.pop()
        kept.append(new)
    return np.array(kept, dtype=np.int64)

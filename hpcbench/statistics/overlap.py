"""Overlap of communication and computation, compared pass by pass: drift of the machine cancels.
Nothing is clipped: slower than its parts one after the other is a negative overlap. Each number is
compared with two values (0 and 1 of an overlap, a ratio of 1 and 5 % off) and shows nothing if the
95 % interval of its mean over passes holds both: at most 1 in 20 numbers is wrongly found to differ
from its true value."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from statistics import NormalDist

import numpy as np

from hpcbench.records import dataclass
from hpcbench.statistics.interval import t_of_normal
from hpcbench.statistics.order import Interval, Values, median

LEVEL = 0.95
NEGLIGIBLE = 0.05
"""Share of a time: an interval that holds both 0 and this shows nothing."""

PassTimes = Sequence[float | None]
"""The median of each planned pass in seconds, in order; None where it was not run."""


@dataclass(frozen=True, slots=True)
class OverPasses:
    """A number of each pass: median, least, greatest. Unless it ``tells``, it may be chance."""

    median: float
    least: float
    greatest: float
    passes: int
    tells: bool = True


def significant(passes: OverPasses | None) -> float | None:
    """Return the median over passes; None where there is none, or where it may be chance."""
    return passes.median if passes is not None and passes.tells else None


def exposed_communication_s(both_s: PassTimes, compute_s: PassTimes) -> OverPasses | None:
    """Return t - t_compute in seconds, the communication that no product hides: "effective
    communication time" of Chang et al., FLUX (arXiv 2406.06858). It is significant where
    `exposed_share` is."""
    found = over_passes(lambda both, compute: both - compute, both_s, compute_s)
    share = exposed_share(both_s, compute_s)
    return replace(found, tells=share.tells) if found and share else found


def exposed_share(both_s: PassTimes, compute_s: PassTimes) -> OverPasses | None:
    """Return (t - t_compute) / t, compared with 0 and 5 %."""
    return over_passes(lambda both, compute: (both - compute) / both, both_s, compute_s,
                       tells=lambda interval: not interval.holds(0.0, NEGLIGIBLE))


def overhead(both_s: PassTimes, compute_s: PassTimes) -> OverPasses | None:
    """Return t / t_compute - 1, compared with 0 and 5 %."""
    return over_passes(lambda both, compute: both / compute - 1, both_s, compute_s,
                       tells=lambda interval: not interval.holds(0.0, NEGLIGIBLE))


def overlap_efficiency(
    both_s: PassTimes, compute_s: PassTimes, communicate_s: PassTimes
) -> OverPasses | None:
    """Return (t_compute + t_communicate - t) / min(t_compute, t_communicate), compared with 0 and
    1: the hidden share of the shorter part, as in Intel's MPI Benchmarks, which clip it to 0..1."""
    def share(both: float, compute: float, communicate: float) -> float:
        return (compute + communicate - both) / min(compute, communicate)

    return over_passes(share, both_s, compute_s, communicate_s,
                       tells=lambda interval: not interval.holds(0.0, 1.0))


def times_longest_part(
    both_s: PassTimes, compute_s: PassTimes, communicate_s: PassTimes
) -> OverPasses | None:
    """Return t / max(t_compute, t_communicate), compared with 1 and 1.05; 1 hides the shorter part
    completely (the bound of a roofline: Williams et al., CACM 52(4), 2009)."""
    return over_passes(lambda both, compute, communicate: both / max(compute, communicate),
                       both_s, compute_s, communicate_s,
                       tells=lambda interval: not interval.holds(1.0, 1 + NEGLIGIBLE))


def speedup(time_s: PassTimes, base_s: PassTimes) -> OverPasses | None:
    """Return t_base / t, compared with 1, and with 1.05 or 1 / 1.05."""
    return over_passes(lambda time, base: base / time, time_s, base_s,
                       tells=lambda interval: not (interval.holds(1.0, 1 + NEGLIGIBLE) or
                                                   interval.holds(1.0, 1 / (1 + NEGLIGIBLE))))


def mean_interval(values: Values) -> Interval:
    """Return Student's interval of the mean of medians of passes (n,); a single one has none."""
    mean = float(values.mean())
    if values.size < 2:
        return Interval(mean)
    half = _student(values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return Interval(mean, mean - half, mean + half)


def _student(degrees: int) -> float:
    """Return the quantile of Student's t; of 1 and 2 degrees of freedom in closed form."""
    if degrees == 1:
        return math.tan(math.pi * LEVEL / 2)
    if degrees == 2:
        return LEVEL / math.sqrt((1 - LEVEL ** 2) / 2)
    return t_of_normal(NormalDist().inv_cdf((1 + LEVEL) / 2), degrees)


def over_passes(
    formula: Callable[..., float], *times_s: PassTimes,
    tells: Callable[[Interval], bool] = lambda _interval: True,
) -> OverPasses | None:
    """Return a formula of several cases' times over the passes in which all have a time above 0;
    None without any. ``tells`` judges the interval of the mean."""
    rows = [row for row in zip(*times_s, strict=False) if all(row)]
    values = np.array([formula(*row) for row in rows])
    if not values.size:
        return None
    return OverPasses(median(values), float(values.min()), float(values.max()), values.size,
                      tells(mean_interval(values)))

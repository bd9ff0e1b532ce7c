"""How much of a communication passes under a computation: comparisons of times, pass by pass.

What compares cases is made pass by pass, of their medians within that pass: they ran close
together, so a machine that is slower for a while is slower for all of them, and drift cancels.
Nothing is clipped: what is slower than its parts one after the other has a negative overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.order import median

PassTimes = Sequence[float | None]
"""The median of each planned pass in seconds, in order; None where it was not run."""


@dataclass(frozen=True, slots=True)
class OverPasses:
    """A number that each pass has one of: their median, the least and the greatest."""

    median: float
    least: float
    greatest: float
    passes: int


def exposed_communication_s(both_s: PassTimes, compute_s: PassTimes) -> OverPasses | None:
    """Return t - t_compute in seconds: the communication that no product hides.

    The "effective communication time" of Chang et al., "FLUX: Fast software-based communication
    overlap on GPUs through kernel fusion" (arXiv 2406.06858).
    """
    return over_passes(lambda both, compute: both - compute, both_s, compute_s)


def overlap_efficiency(
    both_s: PassTimes, compute_s: PassTimes, communicate_s: PassTimes
) -> OverPasses | None:
    """Return (t_compute + t_communicate - t) / min(t_compute, t_communicate).

    The share of the shorter part that passes under the longer one: 1 if all of it does, 0 if the
    time is that of one after the other. The formula of Intel's MPI Benchmarks (user guide,
    "Measuring Communication and Computation Overlap"), which clip it to 0..1.
    """
    def share(both: float, compute: float, communicate: float) -> float:
        return (compute + communicate - both) / min(compute, communicate)

    return over_passes(share, both_s, compute_s, communicate_s)


def times_longest_part(
    both_s: PassTimes, compute_s: PassTimes, communicate_s: PassTimes
) -> OverPasses | None:
    """Return t / max(t_compute, t_communicate): 1 where the shorter part is hidden completely.

    Each part needs the time that it takes alone, so the longest is a bound of their overlap. A
    roofline has the same bound (Williams, Waterman and Patterson, CACM 52(4), 2009).
    """
    return over_passes(lambda both, compute, communicate: both / max(compute, communicate),
                       both_s, compute_s, communicate_s)


def speedup(time_s: PassTimes, base_s: PassTimes) -> OverPasses | None:
    """Return t_base / t: above 1 where it is faster than the base."""
    return over_passes(lambda time, base: base / time, time_s, base_s)


def over_passes(formula: Callable[..., float], *times_s: PassTimes) -> OverPasses | None:
    """Return what a formula of several cases' times gives over the passes that all of them have.

    A pass counts where every case has a time above 0; None if there is no such pass.
    """
    rows = [row for row in zip(*times_s, strict=False) if all(row)]
    values = np.array([formula(*row) for row in rows])
    if not values.size:
        return None
    return OverPasses(median(values), float(values.min()), float(values.max()), values.size)

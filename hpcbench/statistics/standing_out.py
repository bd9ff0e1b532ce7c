"""Whether one of several equal ranks takes longer than all others, with a known error rate.

Steps share disturbances with their neighbours, and all steps of a pass with one another: a rank
may share its core with something for the whole of it. So a pass is one observation, however many
steps it has. The medians of ranks in passes are compared as in a two-way layout: what a rank takes
longer in some passes and not in others is the error (Scheffe, The Analysis of Variance, 4.2).

A rank stands out if it is apart from *each* other rank, so from the next one: ranks that share a
core are slow together, and none of them is the slow one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.order import medians
from hpcbench.statistics.student import t_quantile, t_tail

MIN_PASSES, MIN_STEPS = 3, 5
"""Two passes leave two ranks one degree of freedom, with which only what is 800 times its error
passes a corrected test. The median of 5 steps ignores two that are disturbed."""
LEVEL = 0.99
"""Of the interval of the difference."""
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Standing:
    """The rank that takes longest, beside the one that takes the next longest.

    Attributes:
        row, next_row: which they are.
        apart_s: the mean over passes of the difference of their medians.
        low_s, high_s: its interval of level `LEVEL`.
        chance: how likely any one of equal ranks is this surely more than ``least_s`` apart.
    """

    row: int
    next_row: int
    apart_s: float
    low_s: float
    high_s: float
    chance: float


def are_enough(passes: Sequence[int]) -> bool:
    """Return whether passes of so many steps each can tell whether a rank stands out."""
    return len(passes) >= MIN_PASSES and min(passes) >= MIN_STEPS


def pass_medians(times_s: Times, passes: Sequence[int]) -> Times | None:
    """Return the medians of times (rank, step) in each pass, (rank, pass), if they `are_enough`.

    ``passes`` are the numbers of steps of each pass, in order.
    """
    if not are_enough(passes):
        return None
    ends = np.cumsum(passes)
    return np.stack([medians(times_s[:, end - length:end])
                     for end, length in zip(ends, passes, strict=True)], axis=1)


def standing(medians_s: Times, least_s: float) -> Standing:
    """Return which of several ranks takes longest, from its medians, (rank, pass).

    Raises ValueError for fewer than two ranks or passes.
    """
    ranks, passes = medians_s.shape
    if min(ranks, passes) < 2:
        raise ValueError(f"{ranks} ranks and {passes} passes: both take two at least")
    row, next_row = (int(one) for one in np.argsort(-medians_s.mean(axis=1), kind="stable")[:2])
    apart = medians_s - medians_s.mean(axis=0)
    apart -= apart.mean(axis=1, keepdims=True)
    degrees = (ranks - 1) * (passes - 1)
    between = medians_s[row] - medians_s[next_row]
    variance = max(2 * float((apart ** 2).sum()) / degrees, float(between.var(ddof=1)))
    apart_s, deviation_s = float(between.mean()), float(np.sqrt(variance / passes))
    half_s = t_quantile((1 - LEVEL) / 2, degrees) * deviation_s
    far = (apart_s - least_s) / deviation_s if deviation_s > 0 else (
        np.inf if apart_s > least_s else -np.inf)
    return Standing(row, next_row, apart_s, apart_s - half_s, apart_s + half_s,
                    min(1.0, ranks * t_tail(float(far), degrees)))

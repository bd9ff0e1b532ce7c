"""Whether one time of a step varies more than another of the same steps, with a known error rate.

Deviations are from the median and relative to it, so that a long and a short time compare. A
permutation test of paired differences decides (Fisher 1935; Good, Permutation Tests, 3.2): if the
difference is as likely above 0 as below, its sign says nothing, and any other sign would have
been as likely. Neighbouring steps share disturbances, so signs are those of blocks of neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.order import Values, median

MIN_N = 20
"""Fewer steps make fewer than 10 blocks, and 1,024 signs of them: too few for the error rate."""
AS_MUCH = 2.0
"""Only what varies more than so many times as much is reported: less is seen in any long run."""
_MOST_BLOCKS, _FLIPS, _SEED = 25, (1_999, 99_999), 0
_MAD_OF_NORMAL = 1.4826
"""Standard deviation of normal values over their median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Dispersion:
    """How one time varies from step to step.

    ``cv`` is the standard deviation over the mean, which single stalls dominate. ``robust_cv`` is
    1.4826 times the median absolute deviation over the median, which half of the steps can be
    stalls of. ``deviation_s`` is the mean absolute deviation from the median.
    """

    median_s: float
    cv: float
    robust_cv: float
    deviation_s: float


def dispersion(times_s: Values) -> Dispersion:
    """Return how times (n,) vary. Raises ValueError unless n and the median are above 0."""
    middle = median(times_s) if times_s.size else 0.0
    if middle <= 0:
        raise ValueError("times without a median above 0 have no relative deviation")
    away = np.abs(times_s - middle)
    return Dispersion(middle, float(times_s.std() / times_s.mean()),
                      _MAD_OF_NORMAL * median(away) / middle, float(away.mean()))


def chance_of_excess(relative: Values, reference: Values, as_much: float = AS_MUCH) -> float:
    """Return how likely chance makes ``relative`` exceed ``as_much`` times ``reference`` so far.

    Both are relative deviations of the same steps, (n,). If they are of one distribution, it is
    below x in at most a share x of runs, and in fewer the more ``as_much`` is above 1. Raises
    ValueError for fewer than `MIN_N` steps.
    """
    if relative.size < MIN_N:
        raise ValueError(f"{relative.size} steps are fewer than {MIN_N}")
    excess = relative - as_much * reference
    blocks = np.array([part.mean() for part in np.array_split(
        excess, min(_MOST_BLOCKS, excess.size // 2))])
    for flips in _FLIPS:
        signs = np.random.default_rng(_SEED).choice((-1.0, 1.0), size=(flips, blocks.size))
        exceeding = int(np.sum(signs @ blocks >= blocks.sum()))
        if exceeding:
            break  # more flips are for chances that the first ones cannot tell from none
    return (1 + exceeding) / (1 + flips)

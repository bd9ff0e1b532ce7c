"""How times vary between steps, and whether one varies more than others in the same steps."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from hpcbench.records import dataclass
from hpcbench.statistics.order import Values, median

MIN_N = 20
"""Fewer steps make fewer than 10 blocks, and 1,024 signs of them: too few for the error rate."""
AS_MUCH = 2.0
"""Only times that vary over so many times as much are reported: less is seen in any long run."""
_MOST_BLOCKS, _FLIPS, _SEED = 25, (1_999, 99_999), 0
_MAD_OF_NORMAL = 1.4826
"""Standard deviation of normal values over their median absolute deviation."""


@dataclass(frozen=True, slots=True)
class Dispersion:
    """Variation of one time between steps. ``cv``: standard deviation over mean; ``robust_cv``:
    1.4826 MAD over median; ``deviation_s``: mean absolute deviation from the median."""

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
    """Return the p-value of ``relative`` exceeding ``as_much`` times ``reference``, deviations of
    the same steps (n,): a permutation test of paired differences (Good, Permutation Tests, 3.2)
    with signs of blocks of neighbours. Raises ValueError for fewer than `MIN_N` steps."""
    if relative.size < MIN_N:
        raise ValueError(f"{relative.size} steps are fewer than {MIN_N}")
    excess = relative - as_much * reference
    blocks = np.array([part.mean() for part in np.array_split(
        excess, min(_MOST_BLOCKS, excess.size // 2))])
    for flips in _FLIPS:
        signs = _few_signs(blocks.size) if flips == _FLIPS[0] else _signs(flips, blocks.size)
        exceeding = int(np.sum(signs @ blocks >= blocks.sum()))
        if exceeding:
            break  # more flips are for chances that the first ones cannot resolve
    return (1 + exceeding) / (1 + flips)


def _signs(flips: int, blocks: int) -> Values:
    return np.random.default_rng(_SEED).choice((-1.0, 1.0), size=(flips, blocks))


@lru_cache(maxsize=_MOST_BLOCKS)
def _few_signs(blocks: int) -> Values:
    """Return the signs that every test begins with; the many of a second try are not kept."""
    return _signs(_FLIPS[0], blocks)

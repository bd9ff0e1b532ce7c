"""Which ranks are slow by themselves, and which of them are a whole host.

Rates of each case are compared with the median rank; the mean over cases of the logarithms counts.
The slowest is tested against all that are quicker (a deleted residual, Student's t), then the next
one without it, up to a quarter of the ranks. Bonferroni over ranks and over these steps, of which
the first has half of the chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.student import t_quantile, t_tail

LEAST_DROP = 0.05
"""A rank is named from this drop on."""
MIN_RANKS = 4
MOST_SHARE = 4
"""At most one of so many ranks is named: of more, none tells what is usual."""
LEVEL_TAIL = 0.005
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slow by itself: ``drop`` is the lost share of the rate; 99 % interval."""

    rank: int
    drop: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class RankLook:
    """The ranks that are named, and from which drop on the next one would have been.

    ``detectable`` is None where there are too few ranks to tell.
    """

    found: tuple[SlowRank, ...]
    detectable: float | None


def slow_ranks(rates: Values, chance: float) -> RankLook:
    """Return the slow ranks of rates (case, rank)."""
    ranks = rates.shape[1]
    if ranks < MIN_RANKS:
        return RankLook((), None)
    logs = np.log(rates)
    values = (logs - np.median(logs, axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(values)
    steps = ranks // MOST_SHARE
    found: tuple[SlowRank, ...] = ()
    detectable = 0.0
    for step in range(steps):
        rest = values[order[step + 1:]]
        usual, freedom = float(rest.mean()), rest.size - 1
        error = max(float(rest.std(ddof=1)), 1e-12) * math.sqrt(1 + 1 / rest.size)
        apart = usual - float(values[order[step]])
        limit = chance / (2 if step == 0 else 2 * (steps - 1)) / (ranks - step)
        if t_tail(apart / error, freedom) <= limit and _drop(apart) >= LEAST_DROP:
            wide = t_quantile(LEVEL_TAIL, freedom) * error
            found = tuple(_slow(int(rank), usual - float(values[rank]), wide)
                          for rank in order[:step + 1])
        elif not found or step == len(found):
            detectable = max(LEAST_DROP, _drop(t_quantile(limit, freedom) * error))
    return RankLook(tuple(one for one in found if one.drop >= LEAST_DROP),
                    detectable or LEAST_DROP)


def whole_hosts(found: Sequence[SlowRank], hosts: Sequence[str]) -> dict[str, list[SlowRank]]:
    """Return the hosts of which every rank is slow, and that have several, with these ranks."""
    of_host: dict[str, list[SlowRank]] = {}
    for one in found:
        of_host.setdefault(hosts[one.rank], []).append(one)
    return {host: same for host, same in of_host.items()
            if host and len(same) > 1 and len(same) == list(hosts).count(host)}


def _slow(rank: int, apart: float, wide: float) -> SlowRank:
    return SlowRank(rank, _drop(apart), _drop(apart - wide), _drop(apart + wide))


def _drop(log_apart: float) -> float:
    return 1 - math.exp(-log_apart)

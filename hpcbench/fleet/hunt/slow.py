"""Which of many nodes, ranks, links or switches are slow: a test without a distribution.

Columns are compared in passes, each of which measured all of them. Equal columns are the slowest of
n in a pass by chance 1/n; one that is so in nearly all passes is slow (`analysis.machine`, with its
correction for passes that depend on one another). Persistent differences of good columns look the
same to this test: so the column has to be away from the others by a multiple of their own spread,
too, which needs no distribution either. The slowest is tested against all others, then the next
without it, up to a quarter of the columns. Bonferroni over columns, steps and `SERIES`."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.machine import (
    CHANCE,
    MIN_RANKS,
    MOST_SHARE,
    chance_of_rank,
    chance_of_shares,
)
from hpcbench.records import dataclass

Values = npt.NDArray[np.float64]
SERIES = 12
"""Quantities of a hunt that are tested; their chances add up to `CHANCE`."""
MOST_TESTED = CHANCE / SERIES
LEAST_DROP = 0.1
"""A node, link or switch is bad from this lost share of the rate on."""
AWAY = 4.0
"""A slow column is away from the median of the others by so many times the distance of their
lowest tenth from it."""
LOW_PERCENT = 10
FEWEST_PASSES = 4
"""From so many on one of them may be disturbed, and a stage may end without anybody in doubt."""
DOUBT = LEAST_DROP / 2
"""A column that has lost a greater share by the passes so far is in doubt: more are needed."""
LOOKS = 2
"""A stage ends as soon as all in doubt are slow: in each pass so far, or in all but one of more.
Either may be by chance, and their chances add up."""


@dataclass(frozen=True, slots=True)
class SlowColumn:
    """A slow column: ``share`` of the usual rate that it reaches, in ``low`` of ``passes``."""

    column: int
    share: float
    low: int
    passes: int


def step_chance(columns: int, step: int) -> float:
    """Return the chance of a false alarm that one column has in one step."""
    steps = columns // MOST_SHARE
    share = 1 if steps < 2 else 2 if step == 0 else 2 * (steps - 1)
    return MOST_TESTED / LOOKS / share / (columns - step)


def passes_needed(columns: int, chance: float | None = None, disturbed: int = 0) -> int:
    """Return in how many passes the slowest of so many columns shows itself.

    ``chance``: of the one column that is tested; None: each of them may be slow. ``disturbed``: in
    so many of the passes another one may be slower."""
    last = max(columns // MOST_SHARE - 1, 0) if chance is None else 0
    limit = step_chance(columns, last) if chance is None else chance
    rest = columns - last
    n = FEWEST_PASSES
    while chance_of_shares([1 / rest] * (n - disturbed) + [1.0] * disturbed, 0.0) > limit:
        n += 1
    return n


def _logs(rates: Values) -> tuple[npt.NDArray[np.int64], Values]:
    """Return the columns that are measured in half of the passes or more, and the logarithms of
    their rates to the median of each pass that measured more than half of them; 0 for NaN."""
    with np.errstate(invalid="ignore"):
        logs = np.log(rates)
    kept = np.flatnonzero((~np.isnan(logs)).sum(axis=0) * 2 >= len(logs))
    logs = logs[(~np.isnan(logs[:, kept])).sum(axis=1) * 2 > kept.size][:, kept]
    if kept.size and len(logs):
        logs = logs - np.nanmedian(logs, axis=1, keepdims=True)
    return kept, np.where(np.isnan(logs), 0.0, logs)


def doubtful_columns(rates: Values) -> list[int]:
    """Return the columns of rates (pass, column) of which it is not clear that they are usual."""
    kept, logs = _logs(rates)
    if not kept.size or not len(logs):
        return list(range(rates.shape[1]))
    effects = np.median(logs, axis=0)
    clear = kept[effects >= np.median(effects) + math.log(1 - DOUBT)]
    return sorted({*range(rates.shape[1])} - {*clear.tolist()})


def slow_columns(rates: Values) -> list[SlowColumn]:
    """Return the slow columns of rates (pass, column), the slowest first.

    A rate is positive; NaN was not measured, and counts as usual. A column that is measured in
    less than half of the passes is left out."""
    kept, logs = _logs(rates)
    if kept.size < MIN_RANKS or not len(logs):
        return []
    effects = np.median(logs, axis=0)
    order = np.argsort(effects, kind="stable")
    n_slow, steps = 0, kept.size // MOST_SHARE
    least = float(np.median(effects[order[steps:]])) + math.log(1 - LEAST_DROP)
    for step in range(steps):
        if effects[order[step]] > least:  # the usual of no step is greater
            break
        rest = effects[order[step + 1:]]
        usual = float(np.median(rest))
        if usual - effects[order[step]] >= _away(rest) and chance_of_rank(
                logs[:, order[step:]]) <= step_chance(kept.size, step):
            n_slow = step + 1
    usual = float(np.median(effects[order[n_slow:]]))
    limit = usual + math.log(1 - LEAST_DROP)
    return [SlowColumn(int(kept[one]), math.exp(effects[one] - usual),
                       int((logs[:, one] < limit).sum()), len(logs))
            for one in order[:n_slow] if effects[one] <= limit]


def is_lower(
    accused: Sequence[float], controls: Sequence[Sequence[float]], chance: float,
) -> bool:
    """Return whether the accused is lower than its controls in nearly all rounds, as an equal one
    would be in at most so many (``chance``) of the cases, and away from them as a slow column is:
    rounds that follow one another may show one state of the machine.

    ``controls`` are those of each round; none of them was chosen for its own value."""
    pairs = [(own, others) for own, others in zip(accused, controls, strict=True) if others]
    if not pairs:
        return False
    shares = [(1 + sum(other <= own for other in others)) / (1 + len(others))
              for own, others in pairs]
    drop = float(np.median([np.log(own / np.median(others)) for own, others in pairs]))
    return chance_of_shares(shares, 0.0) <= chance and -drop >= _away(
        np.log([other for _, others in pairs for other in others]))


def _away(logs: Values) -> float:
    """Return how much lower than the median of these logarithms a slow one has to be."""
    spread = float(np.median(logs)) - float(np.percentile(logs, LOW_PERCENT))
    return max(-math.log(1 - LEAST_DROP), AWAY * spread)

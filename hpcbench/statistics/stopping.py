"""When a case has been measured often enough.

The decision is made at checkpoints, not after every iteration, and with a 99 % interval. Looking
again and again until an interval happens to be narrow costs coverage. The 95 % interval that is
reported afterwards therefore keeps its level only behind a stricter one, and where enough
values count as independent ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.order import median

GROWTH = 1.5
"""From one checkpoint to the next."""
MIN_BLOCKS = 20
"""Values that count as independent. With fewer it would end mostly where the dependence happens to
be estimated too low: of AR(0.8) series in three passes 92 % of the intervals hold the median."""
LEAST_PASS_S = 0.1
"""A pass does not converge sooner. Samples of a few milliseconds show one state of the machine,
however well they agree: medians of passes that were cut at 10 ms had a range of 27 %, of 8.5 % at
0.1 s, and of no less at 0.27 s."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Measure at least ``min_n`` and at most ``max_n`` iterations, for about ``budget_s`` seconds.

    Stop in between when the ``level`` interval of the median is narrower than ``target``, its
    half width relative to the median, and ``least_s`` have passed. ``min_n == max_n`` is a fixed
    count: neither the interval nor the budget ends it sooner.
    """

    min_n: int
    max_n: int
    target: float
    budget_s: float
    level: float = 0.99
    least_s: float = 0.0

    def __post_init__(self) -> None:
        if not 1 <= self.min_n <= self.max_n:
            raise ValueError(f"iterations: not 1 <= {self.min_n} <= {self.max_n}")
        if not self.target >= 0 or not self.budget_s > 0 or not 0 < self.level < 1:
            raise ValueError(f"not a rule to stop by: {self}")

    @property
    def is_fixed(self) -> bool:
        return self.min_n == self.max_n


@dataclass(frozen=True, slots=True)
class Decision:
    """Why to stop (None: go on), and the relative half width (None where there is none yet).

    Reasons: ``fixed`` (as many as requested), ``converged``, ``max_iterations``, ``budget``.
    """

    reason: str | None
    half_width: float | None


def checkpoints(rule: StopRule) -> Iterator[int]:
    """Yield the iteration counts to decide at: min_n, 1.5 times that, ..., max_n."""
    n = rule.min_n
    while n < rule.max_n:
        yield n
        n = max(n + 1, math.ceil(n * GROWTH))
    yield rule.max_n


def next_checkpoint(rule: StopRule, n: int, elapsed_s: float) -> int:
    """Return the count to decide at next, after ``n`` iterations that took ``elapsed_s`` seconds.

    It is brought forward where, at the pace so far, the budget would end before it; so the budget
    is overrun by one iteration, or by what iterations are slower than before. With no pace known
    yet (n = 0) that is after the first one.
    """
    planned = next((count for count in checkpoints(rule) if count > n), rule.max_n)
    if rule.is_fixed or planned <= n + 1:
        return planned
    if n == 0:
        return 1
    if elapsed_s <= 0:
        return planned
    affordable = max(0.0, rule.budget_s - elapsed_s) / elapsed_s * n
    return n + max(1, math.floor(min(planned - n, affordable)))


def decide(rule: StopRule, times_ns: npt.NDArray[np.int64], elapsed_s: float,
           segments: Sequence[int] = ()) -> Decision:
    """Return whether to stop after iterations of ``times_ns`` (n,), which took ``elapsed_s``.

    ``times_ns`` is what the ranks agreed on: every rank has to decide by the same values, or one
    of them by all. It goes on while the interval is unreliable. ``segments`` are the lengths of
    the passes in ``times_ns``. Raises ValueError if they do not add up to n.
    """
    if not times_ns.size:
        return Decision(None, None)
    interval = median_interval(times_ns.astype(np.float64), rule.level, segments)
    middle = median(times_ns)
    half_width = (interval.high - interval.low) / 2 / middle if interval and middle > 0 else None
    is_narrow = interval is not None and interval.reliable and half_width is not None \
        and half_width <= rule.target and interval.n_blocks >= MIN_BLOCKS
    return Decision(_reason(rule, times_ns.size, elapsed_s, is_narrow), half_width)


def _reason(rule: StopRule, n: int, elapsed_s: float, is_narrow: bool) -> str | None:
    if rule.is_fixed:
        return "fixed" if n >= rule.max_n else None
    if is_narrow and n >= rule.min_n and elapsed_s >= rule.least_s:
        return "converged"
    if n >= rule.max_n:
        return "max_iterations"
    return "budget" if elapsed_s >= rule.budget_s else None

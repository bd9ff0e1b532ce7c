"""When a case has been measured often enough. Decided at checkpoints with a 99 % interval: testing
often until an interval happens to be narrow costs coverage of the 95 % one reported later."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.order import median

GROWTH = 1.5
"""Factor from one checkpoint to the next."""
MIN_BLOCKS = 20
"""Independent values; with fewer, cases stop where dependence is estimated too low (92 %
coverage)."""
LEAST_PASS_S = 0.1
"""A pass does not converge sooner. Samples of a few milliseconds show one state of the machine,
however well they agree: medians of passes that were cut at 10 ms had a range of 27 %, of 8.5 % at
0.1 s, and of no less at 0.27 s."""


@dataclass(frozen=True, slots=True)
class StopRule:
    """Measure ``min_n`` to ``max_n`` iterations, for about ``budget_s`` seconds. Stop when the
    ``level`` interval of the median has a relative half width below ``target`` and ``least_s`` have
    passed. ``min_n == max_n`` is a fixed count, whatever the interval and the budget."""

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
    """Reason to stop (None: go on), and relative half width. ``fixed``, ``converged``,
    ``max_iterations``, ``budget``."""

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
    """Return the count to decide at next, after ``n`` iterations in ``elapsed_s``; brought forward
    where the budget would end before. Without a pace (n = 0) that is after the first one."""
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
    """Return whether to stop after iterations of ``times_ns`` (n,), as all ranks agreed on them;
    not while the interval is unreliable. ``segments`` are the lengths of passes; ValueError if they
    do not add up."""
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

"""How far the times of one case lie apart: what tables and figures say beside its median."""

from __future__ import annotations

from collections.abc import Iterable

from hpcbench.reduce.results import CaseResult, Statistics, Timing
from hpcbench.statistics.order import MIN_N_P5_P95

Range = tuple[float, float]
FEWEST_FOR_PERCENTILES = MIN_N_P5_P95
"""With fewer samples there is no p5 or p95."""


def interval_share(stats: Statistics) -> float | None:
    """Return how far the median's interval reaches to its farther side, over the median.

    None where there is no interval, or where the samples depend on one another too much for it.
    """
    if stats.ci_low_s is None or stats.ci_high_s is None or not stats.ci_reliable:
        return None
    if not stats.median_s > 0:
        return None
    return max(stats.ci_high_s - stats.median_s, stats.median_s - stats.ci_low_s) / stats.median_s


def late_share(item: CaseResult) -> float | None:
    """Return the share of the counted samples that a rank started late; None without samples."""
    if item.timing is None or item.statistics is None:
        return None
    return item.timing.n_late / max(item.statistics.n, 1)


def range_of(times_s: Iterable[float | None]) -> Range | None:
    """Return the least and the greatest of at least two times, as of passes or launches."""
    known = [time_s for time_s in times_s if time_s is not None]
    return (min(known), max(known)) if len(known) > 1 else None


def launch_spread(timing: Timing) -> float | None:
    """Return the greatest median of a launch over the least, less 1; None of a single launch."""
    ends = range_of(timing.launch_medians_s)
    return None if ends is None or not ends[0] > 0 else ends[1] / ends[0] - 1

"""Spread of times, and summary numbers over all cases of a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np

from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult, Statistics, Timing
from hpcbench.statistics.order import MIN_N_P5_P95, median
from hpcbench.units import grouped

Range = tuple[float, float]
FEWEST_FOR_PERCENTILES = MIN_N_P5_P95
"""With fewer samples there is no p5 or p95."""


def interval_share(stats: Statistics) -> float | None:
    """Return the longer half of the median's interval over the median; None without a reliable
    one."""
    if stats.reliable_interval is None or not stats.median_s > 0:
        return None
    low_s, high_s = stats.reliable_interval
    return max(high_s - stats.median_s, stats.median_s - low_s) / stats.median_s


def late_share(item: CaseResult) -> float | None:
    if item.timing is None or item.statistics is None:
        return None
    return item.timing.n_late / max(item.statistics.n, 1)


def ramp_share(item: CaseResult) -> float | None:
    if item.timing is None or item.statistics is None:
        return None
    return item.timing.n_ramp * item.timing.all_count / max(item.statistics.n, 1)


def range_of(times_s: Iterable[float | None]) -> Range | None:
    known = [time_s for time_s in times_s if time_s is not None]
    return (min(known), max(known)) if len(known) > 1 else None


def launch_range(timing: Timing) -> Range | None:
    """Return the least and greatest median of a launch; None without several launches."""
    return None if timing.repeats else range_of(timing.launch_medians_s)


def launch_spread(timing: Timing) -> float | None:
    """Return the greatest launch median over the least, less 1; None of a single launch."""
    ends = launch_range(timing)
    return None if ends is None or not ends[0] > 0 else ends[1] / ends[0] - 1


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """How far the medians of a case's launches are apart: the median over cases, and the widest."""

    middle: float
    widest: float
    widest_case: CaseResult


@dataclass(frozen=True, slots=True)
class StartUp:
    """The longest start-up of a backend on so many ranks; ``stop_reasons`` counts passes."""

    backend: str
    world_size: int
    communicator_s: float | None
    first_call_s: float | None
    stop_reasons: Mapping[str, int]


def sample_counts(items: Iterable[CaseResult]) -> Mapping[str, int]:
    """Return the samples of each sort over all cases: ``counted``, of which are ``late``,
    ``outlier``, ``counted_ramp`` and ``counted_surplus``; ``warmup``, ``ramp`` and ``surplus``."""
    counts = Counter[str]()
    for item in items:
        if (timing := item.timing) is None:
            continue
        counts["counted"] += item.statistics.n if item.statistics else 0
        for name in ("warmup", "late", "outlier"):
            counts[name] += getattr(timing, f"n_{name}")
        for name in ("ramp", "surplus"):
            counts[f"counted_{name}" if timing.all_count else name] += getattr(timing, f"n_{name}")
    return counts


def launch_spreads(items: Iterable[CaseResult]) -> LaunchSpread | None:
    spreads = sorted(
        ((spread, item) for item in items if item.timing is not None
         and (spread := launch_spread(item.timing)) is not None), key=lambda pair: pair[0])
    if not spreads:
        return None
    return LaunchSpread(median(np.array([spread for spread, _ in spreads])), *spreads[-1])


def start_ups(items: Iterable[CaseResult]) -> Iterator[StartUp]:
    groups = grouped(((item.case.backend, item.case.world_size), item.timing)
                     for item in items if item.timing is not None)
    for (backend, ranks), timings in groups.items():
        yield StartUp(
            backend, ranks, _longest(timing.communicator_s for timing in timings),
            _longest(timing.first_call_s for timing in timings),
            Counter(reason for timing in timings for reason in timing.stop_reasons))


def clock_bound_s(items: Iterable[CaseResult]) -> float | None:
    """Return the largest clock bound of any case; None if unknown."""
    return _longest(item.timing.clock_bound_s for item in items if item.timing is not None)


def _longest(times_s: Iterable[float | None]) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)

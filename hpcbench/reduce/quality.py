"""How far the times of cases can be trusted: shares and spreads that are told beside them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from hpcbench.reduce.results import CaseResult, Statistics, Timing
from hpcbench.trace.schema import STOP_REASONS


def interval_share(stats: Statistics) -> float | None:
    """Return how far the median's interval reaches to its farther side, over the median.

    None where there is no interval, or where the samples depend on one another too much for it.
    """
    if stats.ci_low_s is None or stats.ci_high_s is None or not stats.ci_reliable:
        return None
    if not stats.median_s > 0:
        return None
    return max(stats.ci_high_s - stats.median_s, stats.median_s - stats.ci_low_s) / stats.median_s


def late_share(item: CaseResult) -> float:
    """Return the share of a case's samples that a rank started late; 0 without any."""
    late = item.timing.n_late if item.timing else 0
    return late / max(item.statistics.n if item.statistics else 0, 1)


def launch_spread(timing: Timing) -> float | None:
    """Return by how much the slowest launch's median is above the fastest's; None of one launch."""
    medians = timing.launch_medians_s
    return max(medians) / min(medians) - 1 if len(medians) > 1 and min(medians) > 0 else None


@dataclass(frozen=True, slots=True)
class StartUp:
    """The longest start-up of any rank in cases that have backend and ranks in common.

    ``ends`` counts why their passes ended, in the order of STOP_REASONS.
    """

    backend: str
    world_size: int
    communicator_s: float | None
    first_call_s: float | None
    ends: tuple[tuple[str, int], ...]


def start_ups(items: Iterable[CaseResult]) -> list[StartUp]:
    """Return the start-up of each backend on each number of ranks."""
    groups: dict[tuple[str, int], list[Timing]] = defaultdict(list)
    for item in items:
        if item.timing is not None:
            groups[item.case.backend, item.case.world_size].append(item.timing)
    return [StartUp(
        backend, ranks, _longest([timing.communicator_s for timing in timings]),
        _longest([timing.first_call_s for timing in timings]), _ends(timings))
        for (backend, ranks), timings in groups.items()]


def _longest(times_s: Sequence[float | None]) -> float | None:
    return max((time for time in times_s if time is not None), default=None)


def _ends(timings: Sequence[Timing]) -> tuple[tuple[str, int], ...]:
    counts = Counter(reason for timing in timings for reason in timing.stop_reasons)
    return tuple((reason, counts[reason]) for reason in STOP_REASONS if counts[reason])

"""What all cases of a run come to: samples of each sort, launches, start-up, the clocks' bound."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from hpcbench.reduce.results import CaseResult, Timing
from hpcbench.reduce.spread import launch_spread


@dataclass(frozen=True, slots=True)
class SampleCounts:
    """How many samples there are of each sort over all cases, named as in `Timing`.

    ``counted`` are those in statistics, of which ``late`` and ``outlier`` are a part; the others
    are kept and not counted.
    """

    counted: int
    warmup: int
    ramp: int
    surplus: int
    late: int
    outlier: int


@dataclass(frozen=True, slots=True)
class LaunchSpread:
    """How far the medians of a case's launches lie apart: of the middle case, and the widest."""

    middle: float
    widest: float
    widest_case: CaseResult


@dataclass(frozen=True, slots=True)
class StartUp:
    """The longest start-up of any rank and case of a backend on so many ranks; None if unknown.

    ``stop_reasons`` counts why the passes ended.
    """

    backend: str
    world_size: int
    communicator_s: float | None
    first_call_s: float | None
    stop_reasons: Mapping[str, int]


def sample_counts(items: Iterable[CaseResult]) -> SampleCounts:
    """Return the sums over all cases with a timing."""
    timed = [(item, item.timing) for item in items if item.timing is not None]
    names = ("warmup", "ramp", "surplus", "late", "outlier")
    return SampleCounts(
        counted=sum(item.statistics.n for item, _ in timed if item.statistics),
        **{name: sum(getattr(timing, f"n_{name}") for _, timing in timed) for name in names})


def launch_spreads(items: Iterable[CaseResult]) -> LaunchSpread | None:
    """Return how far launches lie apart; None where no case has several."""
    spreads = sorted(
        ((spread, at, item) for at, item in enumerate(items) if item.timing is not None
         and (spread := launch_spread(item.timing)) is not None), key=lambda entry: entry[:2])
    if not spreads:
        return None
    return LaunchSpread(spreads[len(spreads) // 2][0], spreads[-1][0], spreads[-1][2])


def start_ups(items: Iterable[CaseResult]) -> Iterator[StartUp]:
    """Yield the start-up on each backend and number of ranks, in the order of the cases."""
    groups: dict[tuple[str, int], list[Timing]] = defaultdict(list)
    for item in items:
        if item.timing is not None:
            groups[item.case.backend, item.case.world_size].append(item.timing)
    for (backend, ranks), timings in groups.items():
        yield StartUp(
            backend, ranks, _longest([timing.communicator_s for timing in timings]),
            _longest([timing.first_call_s for timing in timings]),
            Counter(reason for timing in timings for reason in timing.stop_reasons))


def clock_bound_s(items: Iterable[CaseResult]) -> float | None:
    """Return how far the ranks' times may be apart at most in any of the cases; None if unknown."""
    return _longest([item.timing.clock_bound_s for item in items if item.timing is not None])


def _longest(times_s: Sequence[float | None]) -> float | None:
    return max((time_s for time_s in times_s if time_s is not None), default=None)

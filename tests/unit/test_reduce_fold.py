"""Every pass of a case counts alike, however many samples it took."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from hpcbench.plan.case import Case
from hpcbench.reduce.fold import (
    Folded,
    GlobalStamps,
    edges,
    extreme_durations,
    fold_samples,
    joined,
)
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Use
from synthetic import make_case


def stacked(durations: list[np.ndarray[Any, Any]]) -> CaseSamples:
    """Samples of one rank; each array is a pass of a launch of its own."""
    times = np.concatenate(durations).astype(np.int64)
    start = 10**12 + np.cumsum(times + 1000)
    none = np.full((1, times.size), -1, dtype=np.int64)
    launch = np.repeat(np.arange(len(durations)), [part.size for part in durations])
    return CaseSamples(
        ranks=(0,), launch=launch, pass_index=np.zeros_like(launch), start_ns=start[None],
        end_ns=(start + times)[None], enqueue_ns=none, device_ns=none, flags=np.zeros_like(none))


def folded_of(case: Case, passes: list[np.ndarray[Any, Any]]) -> Folded:
    """Fold these durations in ns of each pass, without a global clock."""
    samples = stacked(passes)
    return fold_samples(case, samples, extreme_durations(samples), None)


def test_as_many_samples_count_from_every_pass_evenly_spread() -> None:
    case = make_case(world_size=1, mode="barrier_start", min_iterations=2)
    passes = [np.full(n, 100.0) for n in (10, 40, 25)]
    folded = folded_of(case, passes)
    assert [part.size for part in folded.by_pass()] == [10, 10, 10]
    assert folded.has(Use.SURPLUS).sum() == 45
    assert np.flatnonzero(folded.counted[10:50]).tolist() == list(range(2, 40, 4))


def test_where_the_number_was_given_all_count_and_the_others_are_flagged() -> None:
    case = make_case(world_size=1, mode="barrier_start")
    folded = folded_of(case, [np.full(n, 100.0) for n in (10, 40, 25)])
    assert folded.counted.all() and folded.has(Use.COUNTED_SURPLUS).sum() == 45


def test_a_budget_does_not_lean_the_median_to_fast_passes() -> None:
    """Passes that end when their time is used: fast ones have more samples."""
    noise = np.random.default_rng(3)
    case = make_case(world_size=1, mode="barrier_start", min_iterations=2)
    ratios = []
    for _ in range(100):
        speeds = 100_000 * np.exp(noise.normal(0, 0.25, 3))
        passes = [noise.normal(speed, speed / 50, round(2e7 / speed)) for speed in speeds]
        folded = folded_of(case, passes)
        middle = np.median([np.median(part) for part in passes])
        ratios.append(float(np.median(folded.times_s[folded.counted]) * 1e9 / middle))
        assert np.all(folded.counted | folded.has(Use.SURPLUS, Use.RAMP))
    assert 0.99 < float(np.mean(ratios)) < 1.01


@pytest.mark.parametrize("latest_ns", [10**5, 2**31 - 1, 2**31, 2**40])
@pytest.mark.parametrize("groups", [1, 2])
def test_how_late_ranks_are_in_a_pass_is_the_median_whatever_it_is(
    latest_ns: int, groups: int,
) -> None:
    """Of all ranks, the groups apart or not; rank 3 is later than 32 bits may hold."""
    noise = np.random.default_rng(4)
    late = noise.integers(0, 1000, (4, 50)) + [[0], [1000], [5000], [latest_ns - 999]]
    starts = 10**18 + np.arange(50) * 2**41 + late
    timed = np.arange(50) > 4
    found = edges(GlobalStamps(starts, starts + 10, 0.0), groups, timed=timed)
    expected = np.median((starts - starts.min(axis=0))[:, timed], axis=1)
    assert np.array_equal(found.pass_late_ns[:, 0], expected)


def test_passes_are_known_as_well_as_the_worst_of_them() -> None:
    stamps = np.arange(6).reshape(2, 3)
    one, two = (edges(GlobalStamps(stamps, stamps + 1, bound)) for bound in (70.0, 300.0))
    found = joined([one, two])
    assert found is not None and (found.bound_ns, found.last_end_ns.tolist()) == (
        300.0, [[4, 5, 6] * 2])
    assert joined([one, None]) is None


@pytest.mark.parametrize("n_samples", [1, 5000, 20_000])
def test_extremes_are_over_all_ranks_however_many_samples_there_are(n_samples: int) -> None:
    """Ranks are read some at a time; the first, a middle and the last one hold an extreme each."""
    ranks = 7
    times = np.full((ranks, n_samples), 500, dtype=np.int64)
    times[0, ::3], times[3, 1::3], times[6, 2::3] = 900, 800, 700
    times[6, ::3], times[0, 1::3], times[3, 2::3] = 100, 200, 300
    none = np.full_like(times, -1)
    once = np.zeros(n_samples, dtype=np.int64)
    found = extreme_durations(CaseSamples(
        ranks=tuple(range(ranks)), launch=once, pass_index=once, start_ns=np.zeros_like(times),
        end_ns=times, enqueue_ns=none, device_ns=none, flags=np.zeros_like(times)))
    assert np.array_equal(found.longest_ns, times.max(axis=0))
    assert np.array_equal(found.shortest_ns, times.min(axis=0))

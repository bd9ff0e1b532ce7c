"""Times that follow from stamps, the clocks between them, and what each pass counts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.plan.case import Case
from hpcbench.reduce.fold import (
    ClockHistory,
    Folded,
    GlobalStamps,
    RankClocks,
    edges,
    extreme_durations,
    fold_samples,
    global_ns,
    imbalance_ns,
    joined,
    last_in_ns,
    overtaken_ns,
    sample_durations_ns,
    times_quickest,
)
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Use
from hpcbench.trace.clock import ClockModel
from hpcbench.units import equal_groups
from synthetic import make_case


def samples_of(start_ns: object, end_ns: object) -> CaseSamples:
    """Stamps of rank x sample in one pass."""
    start, end = np.array(start_ns, dtype=np.int64), np.array(end_ns, dtype=np.int64)
    nothing = np.full(start.shape, -1)
    zeros = np.zeros(start.shape[1], dtype=np.int64)
    return CaseSamples(tuple(range(len(start))), zeros, zeros, start, end, nothing, nothing,
                       np.zeros_like(start))


def stamps_of(samples: CaseSamples, bound_ns: float = 0.0) -> GlobalStamps:
    return GlobalStamps(samples.start_ns, samples.end_ns, bound_ns)


THREE = samples_of([[100, 1000], [130, 1000], [110, 1040]], [[200, 1100], [190, 1090], [205, 1095]])


def test_the_times_of_three_ranks_by_hand() -> None:
    found = edges(stamps_of(THREE))
    assert sample_durations_ns(THREE).tolist() == [[100, 100], [60, 90], [95, 55]]
    assert extreme_durations(THREE).longest_ns.tolist() == [100, 100]
    assert global_ns(found).tolist() == [105, 100]
    assert last_in_ns(found).tolist() == [75, 60]
    assert imbalance_ns(found).tolist() == [30, 40]
    assert overtaken_ns(found).tolist() == [[-60, -50]]
    for chosen, times in (([True, True], [0, 1, 1]), ([False, True], [0, 0, 1])):
        found = times_quickest(THREE, extreme_durations(THREE), np.array(chosen))
        assert found.tolist() == times


def test_within_groups_the_slowest_group_counts() -> None:
    both = samples_of([[0], [10], [500], [530]], [[90], [95], [560], [600]])
    found = edges(stamps_of(both), groups=2)
    assert global_ns(found).tolist() == [600]
    assert last_in_ns(found).tolist() == [85]
    assert imbalance_ns(found).tolist() == [30]
    assert overtaken_ns(found).tolist() == [[-80], [-30]]


def test_ranks_of_a_group_may_be_apart() -> None:
    """The same ranks as above in two groups of stride 2: rank 1 and rank 3 are the late group."""
    both = samples_of([[0], [500], [10], [530]], [[90], [560], [95], [600]])
    found = edges(stamps_of(both), groups=2, stride=2)
    assert global_ns(found).tolist() == [600]
    assert last_in_ns(found).tolist() == [85]
    assert imbalance_ns(found).tolist() == [30]
    assert overtaken_ns(found).tolist() == [[-80], [-30]]


@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4))
def test_edges_are_those_of_the_groups_ranks(spans: int, size: int, stride: int) -> None:
    groups, ranks = spans * stride, spans * stride * size
    starts = np.random.default_rng(ranks).integers(0, 1000, (ranks, 3))
    found = edges(GlobalStamps(starts, starts[::-1] + 5000, 0.0), groups, stride)
    for row, members in enumerate(equal_groups(ranks, groups, stride)):
        assert np.array_equal(found.first_start_ns[row], starts[members].min(axis=0))
        assert np.array_equal(found.last_end_ns[row], starts[::-1][members].max(axis=0) + 5000)


STAMPS = st.integers(1, 6).flatmap(lambda ranks: st.lists(
    st.lists(st.tuples(st.integers(0, 10**15), st.integers(0, 10**12)),
             min_size=ranks, max_size=ranks), min_size=1, max_size=5))


@given(STAMPS)
def test_identities_of_the_times(table: list[list[tuple[int, int]]]) -> None:
    start = np.array([[start for start, _ in row] for row in table]).T
    wait = np.array([[wait for _, wait in row] for row in table]).T
    samples = samples_of(start, start + wait)
    found = edges(stamps_of(samples))
    assert np.all(last_in_ns(found) <= global_ns(found))
    assert np.all(extreme_durations(samples).longest_ns <= global_ns(found))
    assert np.all(global_ns(found) == last_in_ns(found) + imbalance_ns(found))
    assert np.all(imbalance_ns(found) == np.ptp(start, axis=0))
    durations_ns = sample_durations_ns(samples)
    assert np.array_equal(extreme_durations(samples).shortest_ns, durations_ns.min(axis=0))
    chosen = np.ones(len(table), dtype=bool)
    assert times_quickest(samples, extreme_durations(samples), chosen).sum() >= len(table)


def test_many_ranks_are_folded_piece_by_piece() -> None:
    noise = np.random.default_rng(3)
    start = noise.integers(0, 10**6, (40, 3000))
    samples = samples_of(start, start + noise.integers(0, 10**6, start.shape))
    durations_ns = sample_durations_ns(samples)
    assert np.array_equal(extreme_durations(samples).longest_ns, durations_ns.max(axis=0))
    quickest = np.argmin(durations_ns, axis=0)
    found = times_quickest(samples, extreme_durations(samples), np.ones(3000, dtype=bool))
    assert np.all(found >= np.bincount(quickest, minlength=40))


def model(t_ref_ns: int, slope: float, offset_ns: int, bound_ns: float) -> ClockModel:
    return ClockModel(t_ref_ns, slope, offset_ns, bound_ns, 0.0, 1.0, 0, 50, 50)


def clocks_of(*histories: ClockHistory, ids: dict[int, int]) -> RankClocks:
    return RankClocks(ids, dict(enumerate(histories)), frozenset())


def history(*models: ClockModel, refuting_ns: tuple[float, ...] = ()) -> ClockHistory:
    return ClockHistory((0,), models, refuting_ns, refuting_ns)


REFERENCE = history(ClockModel.identity(50))


def test_stamps_of_one_clock_are_left_alone() -> None:
    found = clocks_of(ids={0: 4, 1: 4, 2: 4}).stamps(THREE)
    assert found is not None and found.bound_ns == 0
    assert found.start_ns is THREE.start_ns and found.end_ns is THREE.end_ns


@given(st.integers(-10**15, 10**15), st.floats(-150e-6, 150e-6))
def test_stamps_of_another_clock_come_back_to_the_global_one(offset_ns: int, slope: float) -> None:
    other = model(5 * 10**15, slope, offset_ns, 300.0)
    local = [[other.to_local(int(at)) for at in row] for row in THREE.end_ns]
    seen = samples_of(THREE.start_ns, [THREE.end_ns[0], *local[1:]])
    clocks = clocks_of(REFERENCE, history(other), ids={0: 0, 1: 1, 2: 1})
    found = clocks.stamps(seen)
    assert found is not None and found.bound_ns == 300
    assert np.all(np.abs(found.end_ns - THREE.end_ns) <= 1)


def test_the_two_worst_clocks_bound_a_difference() -> None:
    clocks = clocks_of(REFERENCE, history(model(0, 0.0, 7, 300.0)), history(model(0, 0.0, 7, 20.0)),
                       ids={0: 0, 1: 1, 2: 2})
    found = clocks.stamps(THREE)
    assert found is not None and found.bound_ns == 320


def test_a_check_that_the_bounds_do_not_allow_is_the_bound() -> None:
    wrong = history(model(0, 0.0, 7, 30.0), refuting_ns=(41_000.0,))
    found = clocks_of(REFERENCE, wrong, ids={0: 0, 1: 1, 2: 1}).stamps(THREE)
    assert found is not None and found.bound_ns == 41_000


def test_without_a_model_or_with_a_stepped_clock_nothing_is_compared() -> None:
    stepped = history(model(0, 250e-6, 7, 30.0))
    for clocks in (clocks_of(REFERENCE, stepped, ids={0: 0, 1: 1, 2: 1}),
                   clocks_of(REFERENCE, ids={0: 0, 1: 1, 2: 1})):
        assert clocks.stamps(THREE) is None
        two = samples_of(THREE.start_ns[:1], THREE.end_ns[:1])
        assert clocks.stamps(two) is not None


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

"""Times that follow from stamps, and the clocks between them."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.reduce.fold import (
    ClockHistory,
    GlobalStamps,
    RankClocks,
    edges,
    extreme_durations,
    global_ns,
    imbalance_ns,
    last_in_ns,
    overtaken_ns,
    sample_durations_ns,
    times_quickest,
)
from hpcbench.reduce.results import CaseSamples
from hpcbench.trace.clock import ClockModel
from hpcbench.units import equal_groups


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

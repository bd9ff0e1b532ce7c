"""Intervals, orders, dependence, modes: exact where values are independent, else simulated."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes as shapes
from hypothesis.extra.numpy import arrays

from hpcbench.statistics.interval import (
    Inflation,
    MedianInterval,
    check_segments,
    dependence,
    lag1_correlation,
    median_interval,
    median_rank_uncertainty,
    median_ranks,
    normal_of_t,
    passes_differ,
    rank_correlation,
    ranks,
    segments_differ,
    t_of_normal,
)
from hpcbench.statistics.order import (
    Values,
    high_outliers,
    median,
    medians,
    percentiles,
    percentiles_if_enough,
    values_needed,
)
from hpcbench.statistics.steady import Mode, best_split, dip, modes_around_median
from statistics_series import (
    INDEPENDENT_KINDS,
    STATIONARY_KINDS,
    TRUE_MEDIAN,
    Series,
    autoregressive,
    lengths,
    series_of,
)

numbers = st.lists(st.integers(1, 10 ** 6), min_size=6, max_size=200)


def intervals(cases: Series, segments: Sequence[int] = ()) -> list[MedianInterval]:
    found = [median_interval(case, segments=segments) for case in cases]
    assert None not in found
    return [interval for interval in found if interval]


@dataclass(frozen=True)
class Coverage:
    """Of the intervals of many series: ``held`` is the share of the reliable that were right."""

    held: float
    flagged: float


def coverage(cases: Series, segments: Sequence[int] = ()) -> Coverage:
    found = intervals(cases, segments)
    hits = [item.low <= TRUE_MEDIAN <= item.high for item in found if item.reliable]
    return Coverage(float(np.mean(hits)), 1 - len(hits) / len(found))


@pytest.mark.parametrize(("n", "expected"), [
    (5, None), (6, (1, 6)), (10, (2, 9)), (20, (6, 15)), (30, (10, 21)), (50, (18, 33)),
    (100, (40, 61)), (300, (133, 168))])
def test_ranks_as_in_the_tables(n: int, expected: tuple[int, int] | None) -> None:
    assert median_ranks(n, 0.95) == expected


def test_least_counts() -> None:
    values = np.arange(1.0, 9.0)
    assert median_interval(values[:5]) is None
    assert median_interval(values[:6]) is not None
    assert median_interval(values[:7], 0.99) is None
    assert median_interval(values, 0.99) is not None


@given(numbers)
def test_ends_are_values_about_the_median(values: list[int]) -> None:
    array = np.array(values, dtype=float)
    found = median_interval(array)
    assert found.low in values and found.high in values
    assert found.low <= np.median(array) <= found.high
    assert found.reliable == (not found.reason)


@given(numbers, st.sampled_from([0.5, 4.0]), st.integers(-100, 100))
def test_units_and_offsets_do_not_matter(values: list[int], factor: float, offset: int) -> None:
    array = np.array(values, dtype=float)
    one, other = median_interval(array), median_interval(array * factor + offset)
    assert (other.low, other.high) == (one.low * factor + offset, one.high * factor + offset)
    assert (other.block_length, other.reason) == (one.block_length, one.reason)


@given(st.lists(st.integers(1, 10 ** 6), min_size=8, max_size=200))
@example([3, *[1] * 9, 3, 1, 1, 3, 3, 1, 1, 1, 1, 3, 3, 4, 4, 3, *[1] * 6, 2, 1, 4, 1, 1, 2, 1])
def test_a_higher_level_is_wider(values: list[int]) -> None:
    array = np.array(values, dtype=float)
    wide, narrow = median_interval(array, 0.99), median_interval(array, 0.95)
    assert wide.low <= narrow.low and narrow.high <= wide.high


def test_independent_values_get_the_exact_order_statistics() -> None:
    values = np.random.default_rng(0).permutation(100) + 1.0
    assert median_interval(values) == MedianInterval(40, 61, 0.95, 100, 1, True, "", 40)


def test_equal_values_are_an_interval_of_width_zero() -> None:
    assert median_interval(np.full(50, 7.0)) == MedianInterval(7, 7, 0.95, 50, 1, True, "", 18)


def test_few_values_are_not_reliable() -> None:
    found = median_interval(np.random.default_rng(0).permutation(12) + 1.0)
    assert (found.low, found.high, found.reliable) == (3, 10, False)
    assert "too few" in found.reason


def test_dependence_that_few_values_cannot_show_is_not_reliable() -> None:
    found = median_interval(np.arange(40.0))
    assert found is not None and not found.reliable
    assert "correlate" in found.reason


def test_a_random_walk_is_mostly_not_reliable() -> None:
    """It has no median; some of its series look like a stationary one for a while."""
    walks = 100 + np.cumsum(np.random.default_rng(1).standard_normal((50, 500)), axis=1)
    found = intervals(walks)
    assert np.mean([item.reliable for item in found]) < 0.3
    assert found[0].low == walks[0].min() and found[0].n_blocks < 10


def test_dependent_values_count_as_fewer() -> None:
    cases = autoregressive(np.random.default_rng(2), 50, 1000)
    found = intervals(cases)
    assert all(item.reliable for item in found)
    assert 5 < np.median([item.block_length for item in found]) < 10
    assert all(1000 / item.n_blocks <= item.block_length + 0.1 for item in found)
    for values, item in zip(cases, found, strict=True):
        least = 500 - median_rank_uncertainty(values, ranks(values), 0.95).half_width
        assert least - 1 < item.rank <= least and item.low == np.sort(values)[item.rank - 1]


def test_passes_that_differ_are_not_reliable() -> None:
    cases = series_of("log_normal", 20, 300)
    cases[:, 200:] *= 1.5
    found = intervals(cases, [100, 100, 100])
    assert all("passes differ" in item.reason for item in found)


def test_passes_that_agree_are_reliable() -> None:
    found = intervals(series_of("log_normal", 300, 300), [100, 100, 100])
    assert np.mean([item.reliable for item in found]) > 0.97


def test_segments_must_add_up() -> None:
    with pytest.raises(ValueError, match="do not add up"):
        median_interval(np.arange(30.0), segments=[10, 10])


def assert_as_promised(kind: str, found: Coverage, n: int) -> None:
    """What docs/method.md promises of series without long states."""
    assert found.held >= 0.93, found
    assert n < 45 or found.flagged <= (0.05 if kind in INDEPENDENT_KINDS else 0.2), found


@pytest.mark.parametrize(("kind", "n", "passes"), [
    ("log_normal", 45, 3), ("ticks", 60, 1), ("spikes", 200, 3), ("autoregressive_3", 45, 1),
    ("autoregressive_6", 60, 3), ("autoregressive", 30, 3), ("autoregressive", 45, 3),
    ("autoregressive", 60, 1), ("autoregressive", 200, 3)])
def test_coverage(kind: str, n: int, passes: int) -> None:
    assert_as_promised(kind, coverage(series_of(kind, 500, n, passes), lengths(n, passes)), n)


@pytest.mark.parametrize(("n", "wider"), [(45, 1.25), (200, 1.1)])
def test_independent_values_have_intervals_hardly_wider_than_the_exact_ones(
        n: int, wider: float) -> None:
    cases = series_of("log_normal", 500, n)
    low, high = median_ranks(n, 0.95) or (0, 0)
    ordered = np.sort(cases, axis=1)
    exact = np.mean(ordered[:, high - 1] - ordered[:, low - 1])
    assert exact <= np.mean([one.high - one.low for one in intervals(cases)]) < wider * exact


def test_long_states_are_flagged_until_they_have_changed_often() -> None:
    few, many = (intervals(series_of("hops_20", 200, n)) for n in (100, 500))
    assert np.mean([not one.reliable for one in few]) > 0.85
    assert np.mean(["changed only" in one.reason for one in few]) > 0.85
    assert np.mean([one.reliable for one in many]) > 0.95
    assert np.mean([one.low <= TRUE_MEDIAN <= one.high for one in many]) >= 0.93


def test_short_visits_of_another_state_are_flagged_although_ranks_hardly_correlate() -> None:
    """7 % of the values: how large the share of that state really is, three visits do not say."""
    for seed in range(10):
        values = 0.02 * np.random.default_rng(seed).standard_normal(150)
        values[10:13] += 0.4
        values[100:107] += 0.4
        found = median_interval(np.exp(values), segments=[30] * 5)
        assert found is not None and not found.reliable


def test_naive_ranks_would_fail_on_dependent_values() -> None:
    """What the estimate is for: the ranks for independent values cover far less."""
    low, high = median_ranks(200, 0.95) or (0, 0)
    ordered = np.sort(series_of("autoregressive", 500, 200), axis=1)
    naive = (ordered[:, low - 1] <= TRUE_MEDIAN) & (ordered[:, high - 1] >= TRUE_MEDIAN)
    assert naive.mean() < 0.7


@pytest.mark.soak
@pytest.mark.parametrize("passes", [1, 3])
@pytest.mark.parametrize("n", [21, 30, 45, 60, 100, 200, 500, 2000])
@pytest.mark.parametrize("kind", STATIONARY_KINDS)
def test_coverage_by_count(kind: str, n: int, passes: int) -> None:
    assert_as_promised(kind, coverage(series_of(kind, 1000, n, passes), lengths(n, passes)), n)


def _share_different(cases: Series, passes: int = 3) -> float:
    parts = lengths(cases.shape[1], passes)
    return float(np.mean([passes_differ(case, parts) for case in cases]))


@pytest.mark.parametrize("kind", STATIONARY_KINDS)
def test_passes_that_are_alike_are_seldom_different(kind: str) -> None:
    assert _share_different(series_of(kind, 300, 60, 3)) <= 0.03  # 1 % and 3.5 standard errors


def test_passes_that_differ_do_not_pass_for_dependence() -> None:
    levels = np.repeat([1403.0, 19.0, 1203.0], 20)
    cases = series_of("log_normal", 50, 60, 3) * levels
    assert _share_different(cases) > 0.95
    assert np.mean([not one.reliable for one in intervals(cases, [20] * 3)]) > 0.95


def test_one_pass_and_empty_passes_do_not_differ() -> None:
    values = np.arange(30.0)
    assert not passes_differ(values, [30]) and not passes_differ(values, [0, 30, 0])


@pytest.mark.parametrize("n", [6, 10, 30])
def test_passes_of_one_sample_have_an_interval_without_a_warning(n: int) -> None:
    values = np.random.default_rng(0).lognormal(size=n)
    assert median_interval(values, 0.95, (1,) * n) is not None


times = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=300)


def type_7(values: list[float], percent: float) -> float:
    """The textbook definition, on a sorted list."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@given(times, st.sampled_from([0, 5, 25, 50, 75, 95, 99, 100]))
def test_percentile_is_the_linear_one(values: list[float], percent: float) -> None:
    assert percentiles(np.array(values), [percent]) == [pytest.approx(type_7(values, percent))]


@given(times)
def test_median_is_the_middle_of_the_sorted_values(values: list[float]) -> None:
    ordered = sorted(values)
    middle = len(ordered) // 2
    expected = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    assert median(np.array(values)) == pytest.approx(expected)


@pytest.mark.parametrize(("percent", "needed"),
                         [(5, 20), (95, 20), (99, 100), (25, 1), (50, 1), (75, 1)])
def test_a_percentile_is_given_only_from_enough_values(percent: float, needed: int) -> None:
    assert values_needed(percent) == needed
    assert percentiles_if_enough(np.ones(needed), [percent]) == [1.0]
    if needed > 1:
        assert percentiles_if_enough(np.ones(needed - 1), [percent, 50]) == [None, 1.0]


def test_high_outliers_are_far_above_the_median_only() -> None:
    values = np.array([8.0, 9, 9, 10, 10, 11, 11, 20, 20.1, -500])  # median 10, MAD 1
    assert high_outliers(values).tolist() == [False] * 8 + [True, False]


@given(arrays(np.int64, shapes(min_dims=1, max_dims=2, max_side=40),
              elements=st.integers(-10**12, 10**12)))
def test_medians_of_whole_numbers_are_those_of_numpy(values: npt.NDArray[np.int64]) -> None:
    assert np.array_equal(medians(values), np.median(values, axis=-1))


@given(arrays(np.float64, shapes(min_dims=1, max_dims=2, max_side=40),
              elements=st.floats(-1e12, 1e12)))
def test_medians_of_finite_numbers_are_those_of_numpy(values: npt.NDArray[np.float64]) -> None:
    assert np.array_equal(medians(values), np.median(values, axis=-1))


PLAIN = Inflation(1.0)
integers = st.lists(st.integers(-20, 20), min_size=1, max_size=100)


@given(integers)
def test_ranks_count_the_smaller_and_half_of_the_equal(values: list[int]) -> None:
    found = ranks(np.array(values, dtype=float))
    expected = [sum(other < value for other in values) + (values.count(value) + 1) / 2
                for value in values]
    assert found.tolist() == expected


def test_alternating_values_correlate_by_minus_one() -> None:
    assert lag1_correlation(np.array([1.0, 2.0] * 50)) == pytest.approx(-1)


def test_a_constant_has_no_correlation() -> None:
    assert lag1_correlation(np.ones(50)) is None
    assert dependence(np.ones(50), np.ones(50)) is None


def test_neighbours_across_a_border_do_not_count() -> None:
    pairs = np.array([-1.0, -1, 1, 1] * 20)
    assert lag1_correlation(pairs) == pytest.approx(0, abs=0.02)
    assert lag1_correlation(pairs, [2] * 40) == pytest.approx(1)
    assert lag1_correlation(pairs, [1] * 80) is None


def test_segments_of_no_value_change_nothing() -> None:
    values = np.arange(10.0)
    assert lag1_correlation(values, [0, 4, 0, 6, 0]) == lag1_correlation(values, [4, 6])


@pytest.mark.parametrize("segments", [[3], [2, 3], [6, -1]])
def test_segments_of_inflation_must_add_up(segments: list[int]) -> None:
    with pytest.raises(ValueError, match="do not add up to 4 values"):
        check_segments(4, segments)


def signs(values: np.ndarray) -> np.ndarray:
    return np.sign(values - np.median(values))


@pytest.mark.parametrize("kind", INDEPENDENT_KINDS)
def test_independent_values_are_rarely_taken_for_dependent(kind: str) -> None:
    found = [dependence(x, signs(x)) is None for x in series_of(kind, 300, 200)]
    assert np.mean(found) > 0.9


@pytest.mark.parametrize(("correlation", "true"), [(0.5, 2.3), (0.8, 6.0), (0.9, 12.2)])
def test_inflation_of_autoregressive_values(correlation: float, true: float) -> None:
    """True: the variance of the sum of signs over n, from 4,000 series of 1,000 values."""
    cases = autoregressive(np.random.default_rng(7), 200, 1000, correlation)
    found = [dependence(x, signs(x)).inflation for x in cases]
    assert true <= np.mean(found) < 1.4 * true  # a floor under the estimate makes it larger


def test_stalls_do_not_hide_dependence() -> None:
    """A plain correlation coefficient would be that of the ten stalls: none."""
    values = autoregressive(np.random.default_rng(3), 1, 500)[0]
    values[::50] *= 1000
    assert rank_correlation(ranks(values)) > 0.6


@given(st.floats(0.001, 4), st.integers(6, 300))
def test_scores_of_t_and_normal_are_inverse(z: float, degrees: int) -> None:
    t = t_of_normal(z, degrees)
    assert t > z
    assert normal_of_t(t, degrees) == pytest.approx(z, abs=1e-6)


def test_equal_segments_rarely_differ() -> None:
    cases = series_of("log_normal", 1000, 200)
    assert np.mean([segments_differ(ranks(x), [60, 70, 70], PLAIN) for x in cases]) < 0.02


def test_an_uncertain_inflation_makes_less_of_a_difference() -> None:
    cases = series_of("log_normal", 100, 60)
    cases[:, 30:] *= 1.2
    certain, uncertain = (sum(segments_differ(ranks(x), [30, 30], Inflation(1.0, degrees))
                              for x in cases) for degrees in (math.inf, 5))
    assert uncertain < certain


def test_a_slower_segment_is_seen() -> None:
    cases = series_of("log_normal", 100, 300)
    cases[:, 100:200] *= 1.3
    assert np.mean([segments_differ(ranks(x), [100, 100, 100], PLAIN) for x in cases]) > 0.95
    assert not any(segments_differ(ranks(x), [300], PLAIN) for x in cases)


durations = st.lists(st.integers(1, 10 ** 6), min_size=1, max_size=80)


def found(values: Values) -> tuple[Mode, ...]:
    return modes_around_median(values, median_interval(values))


def two(share: float, n: int = 200) -> Values:
    random = np.random.default_rng(1)
    return np.where(random.permutation(n) < share * n, 1.0, 4.0) * np.exp(
        0.05 * random.standard_normal(n))


def test_modes_around_the_median_are_reported_with_their_shares() -> None:
    lower, upper = found(two(0.46))
    assert (lower.median_s, upper.median_s) == (pytest.approx(1, 0.05), pytest.approx(4, 0.05))
    assert (lower.share, upper.share) == (0.46, 0.54)


@pytest.mark.parametrize("share", [0.0, 0.1, 0.3, 0.7, 1.0])
def test_a_median_that_belongs_to_one_mode_is_reported_alone(share: float) -> None:
    assert found(two(share)) == ()


def test_what_has_no_interval_or_one_value_has_no_modes() -> None:
    assert found(np.ones(100)) == found(np.array([1.0, 2.0, 1.0])) == ()


@pytest.mark.parametrize("values", [
    lambda random: 1 + random.random((400, 100)), lambda random: 1 + random.pareto(1.5, (400, 100)),
    lambda random: np.exp(random.standard_normal((400, 100)))])
def test_series_with_one_mode_are_hardly_ever_found_to_have_two(values: object) -> None:
    series = values(np.random.default_rng(7))  # type: ignore[operator]
    assert np.mean([bool(found(one)) for one in series]) <= 0.01


@given(durations, st.integers(1, 1000), st.integers(0, 1000))
def test_the_dip_is_that_of_the_shape(values: list[int], scale: int, shift: int) -> None:
    plain = np.array(values, dtype=float)
    assert 1 / 2 / plain.size <= dip(plain) * (1 + 1e-9)
    assert dip(plain) <= 0.25 or plain.size == 1
    assert dip(plain[::-1] * scale + shift) == pytest.approx(dip(plain))
    assert dip(-plain) == pytest.approx(dip(plain))


def test_two_narrow_groups_dip_the_most() -> None:
    near = np.arange(50) * 1e-9
    assert dip(np.concatenate([1 + near, 2 + near])) == pytest.approx(0.25, 0.03)


def test_the_split_is_in_the_gap() -> None:
    assert best_split(np.array([1.0, 1.1, 1.2, 5.0, 5.1])) == 1.2
    assert best_split(np.ones(5)) == 1.0

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.statistics.interval import (
    Inflation,
    check_segments,
    dependence,
    lag1_correlation,
    normal_of_t,
    rank_correlation,
    ranks,
    segments_differ,
    t_of_normal,
)
from statistics_series import INDEPENDENT_KINDS, autoregressive, series_of

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
def test_segments_must_add_up(segments: list[int]) -> None:
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

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes as shapes
from hypothesis.extra.numpy import arrays

from hpcbench.statistics.order import (
    high_outliers,
    median,
    medians,
    percentiles,
    percentiles_if_enough,
    values_needed,
)

numbers = st.lists(st.floats(1e-9, 1e6), min_size=1, max_size=300)


def type_7(values: list[float], percent: float) -> float:
    """The textbook definition, on a sorted list."""
    ordered = sorted(values)
    position = (len(ordered) - 1) * percent / 100
    low = math.floor(position)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (position - low)


@given(numbers, st.sampled_from([0, 5, 25, 50, 75, 95, 99, 100]))
def test_percentile_is_the_linear_one(values: list[float], percent: float) -> None:
    assert percentiles(np.array(values), [percent]) == [pytest.approx(type_7(values, percent))]


@given(numbers)
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

"""Two modes are found where the median lies between them, and in at most 1 % of unimodal series."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.order import Values
from hpcbench.statistics.steady import Mode, best_split, dip, modes_around_median

numbers = st.lists(st.integers(1, 10 ** 6), min_size=1, max_size=80)


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


@given(numbers, st.integers(1, 1000), st.integers(0, 1000))
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

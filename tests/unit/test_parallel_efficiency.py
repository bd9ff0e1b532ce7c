"""POP's efficiencies: by hand, and what holds for any times."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpcbench.statistics.scaling_laws import Times, of_steps_that_meet, of_two_factors

seconds = st.floats(1e-6, 1e3)


def test_by_hand() -> None:
    """Ranks compute 6 + 2 s and 4 + 2 s of a step of 10 s: on an ideal network it takes 8 s."""
    found = of_steps_that_meet(
        np.array([[6.0], [4.0]]), np.array([[2.0], [2.0]]), np.array([10.0]))
    assert found
    assert found.load_balance == pytest.approx(7 / 8)
    assert found.serialisation == pytest.approx(1)
    assert found.transfer == pytest.approx(0.8)
    assert found.communication == pytest.approx(0.8)
    assert found.parallel == pytest.approx(0.7)


def test_ranks_that_are_slow_in_turn_are_balanced_and_serialised() -> None:
    """Each rank computes 3 s in all, but in each step the other waits for it for 1 s."""
    found = of_steps_that_meet(np.array([[2.0, 1.0], [1.0, 2.0]]), np.zeros((2, 2)),
                               np.array([2.0, 2.0]))
    assert found
    assert (found.load_balance, found.transfer) == (1, 1)
    assert found.serialisation == found.parallel == pytest.approx(0.75)


def test_a_late_begin_is_serialised_and_no_step_is_longer_than_it_was() -> None:
    """The second rank begins 3 s late and is ready after 7 s; the medians of late begins may be
    longer than a step."""
    times = np.array([[4.0], [4.0]]), np.zeros((2, 1)), np.array([8.0])
    found = of_steps_that_meet(*times, np.array([[0.0], [3.0]]))
    assert found
    assert (found.serialisation, found.transfer) == pytest.approx((4 / 7, 7 / 8))
    found = of_steps_that_meet(*times, np.array([[0.0], [9.0]]))
    assert found
    assert (found.serialisation, found.transfer) == pytest.approx((0.5, 1))


def test_without_stamps_there_are_two_factors() -> None:
    found = of_two_factors([3.0, 1.0], 4.0)
    assert found
    assert (found.parallel, found.load_balance, found.communication) == pytest.approx(
        (0.5, 2 / 3, 0.75))
    assert found.serialisation is found.transfer is None


@pytest.mark.parametrize(("useful", "elapsed"), [([], 1.0), ([0.0, 0.0], 1.0), ([1.0], 0.0)])
def test_of_no_time_there_is_nothing(useful: list[float], elapsed: float) -> None:
    assert of_two_factors(useful, elapsed) is None


@given(arrays(float, (3, 4), elements=seconds), arrays(float, (3, 4), elements=seconds),
       arrays(float, (4,), elements=seconds))
def test_factors_multiply_and_are_shares(before: Times, after: Times, waiting: Times) -> None:
    """Whatever the times: a step is at least as long as on an ideal network."""
    step_s = before.max(axis=0) + after.max(axis=0) + waiting
    found = of_steps_that_meet(before, after, step_s)
    assert found and found.serialisation and found.transfer
    assert found.serialisation * found.transfer == pytest.approx(found.communication)
    assert found.load_balance * found.communication == pytest.approx(found.parallel)
    for share in (found.load_balance, found.serialisation, found.transfer, found.parallel):
        assert 0 < share <= 1 + 1e-12
    assert found.load_balance >= 1 / 3 - 1e-12

"""How often chance alone makes one time of a step seem to vary more than another, and power."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.statistics.hypothesis_tests import MIN_N, chance_of_excess, dispersion

Times = npt.NDArray[np.float64]
RATE = 0.01
SEED = 20_260_301


def deviations(times: Times) -> Times:
    return np.asarray(np.abs(times - np.median(times)) / np.median(times))


def correlated(rng: np.random.Generator, n: int, correlation: float, heavy: bool) -> Times:
    """Return times with a median of about 1 whose neighbours depend on one another."""
    noise = rng.standard_t(3, n) if heavy else rng.standard_normal(n)
    for at in range(1, n):
        noise[at] = correlation * noise[at - 1] + np.sqrt(1 - correlation**2) * noise[at]
    return np.asarray(np.exp(0.05 * noise))


@pytest.mark.parametrize("as_much", [1.0, 2.0])
@pytest.mark.parametrize("heavy", [False, True])
@pytest.mark.parametrize("correlation", [0.0, 0.4])
@pytest.mark.parametrize("n", [20, 100])
def test_times_that_vary_alike_are_distinguished_in_one_of_hundred_runs_at_most(
    n: int, correlation: float, heavy: bool, as_much: float,
) -> None:
    rng, runs = np.random.default_rng(SEED), 300
    found = sum(chance_of_excess(
        deviations(correlated(rng, n, correlation, heavy)),
        deviations(correlated(rng, n, correlation, heavy)), as_much) < RATE
        for _ in range(runs))
    # of 300 runs with an error rate of 1 % more than 9 have a probability of 0.1 %
    assert found <= (9 if as_much == 1 else 1)


@pytest.mark.parametrize(("share", "factor"), [(0.2, 4.0), (0.5, 2.0)])
def test_stalls_are_found(share: float, factor: float) -> None:
    rng, runs = np.random.default_rng(SEED), 100
    found = 0
    for _ in range(runs):
        stalled = correlated(rng, 60, 0.2, False)
        stalled[rng.random(60) < share] *= factor
        found += chance_of_excess(
            deviations(stalled), deviations(correlated(rng, 60, 0.2, False))) < RATE
    assert found >= 0.9 * runs


def test_too_few_steps_are_refused() -> None:
    few = np.ones(MIN_N - 1)
    with pytest.raises(ValueError, match="19 steps are fewer than 20"):
        chance_of_excess(few, few)


def test_the_same_steps_give_the_same_chance() -> None:
    rng = np.random.default_rng(SEED)
    first, second = rng.random(50), rng.random(50)
    assert chance_of_excess(first, second) == chance_of_excess(first, second)


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=50), st.floats(1e-3, 1e3))
def test_dispersion_has_no_unit(times: list[float], factor: float) -> None:
    one, other = (dispersion(np.array(times) * scale) for scale in (1.0, factor))
    assert other.cv == pytest.approx(one.cv, rel=1e-6, abs=1e-9)
    assert other.robust_cv == pytest.approx(one.robust_cv, rel=1e-6, abs=1e-9)
    assert other.deviation_s == pytest.approx(factor * one.deviation_s, rel=1e-6, abs=1e-9)


def test_a_single_stall_moves_the_ordinary_coefficient_only() -> None:
    calm = np.full(50, 1.0)
    calm[::2] = 1.1
    stalled = calm.copy()
    stalled[7] = 30.0
    assert dispersion(stalled).cv > 10 * dispersion(calm).cv
    assert dispersion(stalled).robust_cv == pytest.approx(dispersion(calm).robust_cv, rel=0.2)


def test_times_without_a_median_are_refused() -> None:
    for times in (np.zeros(3), np.array([])):
        with pytest.raises(ValueError, match="no relative deviation"):
            dispersion(times)

"""Steps and drifts of a series: found where they are, and not found in noise."""

from __future__ import annotations

import numpy as np
import pytest

from hpcbench.fleet.history.change_points import drift, level_change, steps, unexplained
from hpcbench.statistics.order import Values


def noise(n: int, seed: int, correlation: float = 0.0) -> Values:
    random, values = np.random.default_rng(seed), np.zeros(n)
    for at in range(n):
        fresh = random.standard_normal() * np.sqrt(1 - correlation ** 2 if at else 1)
        values[at] = fresh + correlation * values[at - 1] * bool(at)
    return values


def test_a_step_of_five_percent_in_one_percent_of_noise() -> None:
    found = []
    for seed in range(20):
        values = np.exp(0.01 * noise(40, seed))
        values[25:] *= 1.05
        found += [one for one in steps(values) if abs(one.index - 25) <= 1]
    assert len(found) >= 19
    assert sum(one.change.holds(0.05) for one in found) >= 17
    assert all(one.chance < 0.01 for one in found)


def test_seven_nights_a_side() -> None:
    values = np.exp(0.01 * noise(14, 2))
    values[7:] *= 1.17
    step, = steps(values)
    assert step.index == 7 and abs(step.change.value - 0.17) < 0.02


def test_two_steps_are_told_apart() -> None:
    values = np.exp(0.01 * noise(60, 3))
    values[20:40] *= 1.08
    assert [one.index for one in steps(values)] == [20, 40]


@pytest.mark.parametrize("correlation", [0.0, 0.5])
def test_noise_has_few_steps(correlation: float) -> None:
    false = sum(bool(steps(np.exp(0.03 * noise(30, seed, correlation)))) for seed in range(40))
    assert false <= 4


def test_alike_values_and_few_values_have_no_step() -> None:
    assert steps(np.ones(30)) == [] == steps(np.array([1.0, 2.0]))
    one_off = np.ones(30)
    one_off[12] = 3.0
    assert steps(one_off) == []


@pytest.mark.parametrize("bad", [0.0, -1.0, float("nan"), float("inf")])
def test_values_that_no_run_has_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="above 0"):
        steps(np.array([1.0, bad, 1.0]))


def test_a_line_explains_a_drift_better_than_steps_do() -> None:
    at = np.arange(60.0)
    values = np.exp(0.01 * noise(60, 5)) * (1 + 0.1 * at / 59)
    change, chance = drift(values, at)
    assert change.holds(0.1) and chance < 1e-6
    assert unexplained(values, (), at) < unexplained(values, [20, 40])
    values = np.exp(0.01 * noise(60, 5))
    values[30:] *= 1.1
    assert unexplained(values, [30]) < unexplained(values, (), at)
    with pytest.raises(ValueError, match="at least"):
        drift(np.ones(5), at[:5])


def test_levels_of_a_few_runs() -> None:
    change, chance = level_change(np.array([1.0, 1.01, 0.99, 1.0]),
                                  np.array([1.2, 1.21, 1.19, 1.2, 1.21]))
    assert change.holds(0.2) and chance < 0.01
    same, chance = level_change(np.array([1.0, 1.01, 0.99]), np.array([1.0, 1.02, 0.98]))
    assert same.holds(0.0) and chance > 0.5

"""Intervals over launches, and drift: exact where it can be, else simulated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.reduce.timing import CI_LEVEL, FEWEST_LAUNCHES, Precision, precision_of
from hpcbench.statistics.interval import median_interval, over_launches
from hpcbench.statistics.order import Values
from hpcbench.statistics.steady import FEWEST_RUNS, steady_drift

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(("n", "level", "rank"), [
    (2, 0.5, None), (3, 0.75, None), (5, 0.9375, None), (6, 0.96875, 1), (8, 0.9921875, 1),
    (9, 0.99609375, 2)])
def test_the_level_of_the_range_is_exact(n: int, level: float, rank: int | None) -> None:
    found = over_launches(np.arange(1.0, n + 1), 0.95)
    assert (found.low, found.high, found.level, found.rank) == (1, n, level, rank)


def known(
    times: Values, segments: list[int], medians: tuple[float, ...], *, repeats: bool,
) -> Precision:
    """Return how well the median of times is known, by their passes and the launches' medians."""
    return precision_of(np.split(times, np.cumsum(segments)[:-1]),
                        median_interval(times, CI_LEVEL, segments), medians, repeats=repeats)


def test_launches_that_disagree_have_no_interval_from_few_of_them() -> None:
    """A case whose three launches took 1403, 19 and 1203 us once had a reliable interval."""
    medians = (1403e-6, 19e-6, 1203e-6)
    times = np.repeat(medians, 20) * np.exp(0.3 * np.random.default_rng(1).standard_normal(60))
    few = known(times, [20] * 3, medians, repeats=False)
    assert (few.low_s, few.high_s, few.reliable) == (None, None, False)
    assert (few.launch_low_s, few.launch_high_s, few.launch_level) == (19e-6, 1403e-6, 0.75)
    repeated = known(times, [20] * 3, medians, repeats=True)
    assert repeated.low_s is not None and not repeated.reliable
    assert (repeated.launch_low_s, repeated.launch_level, repeated.unit) == (None, None, "samples")


def test_an_interval_over_launches_holds_the_median_of_all_samples() -> None:
    """A launch of many samples decides the median of all; the interval of launches reaches to it.
    """
    medians = (1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.6, 1.7, 9.0)
    times = np.concatenate([np.array(medians[:-1]), np.full(100, medians[-1])])
    found = known(times, [1] * 8 + [100], medians, repeats=False)
    assert found.rank == 2 and (found.low_s, found.high_s) == (1.1, 9.0)
    below = known(10 - times, [1] * 8 + [100], tuple(10 - np.array(medians)), repeats=False)
    assert (below.low_s, below.high_s) == pytest.approx((1.0, 8.9))


def of_passes(medians: Values, draw: np.random.Generator) -> Precision:
    times = np.concatenate([median * np.exp(0.02 * draw.standard_normal(60)) for median in medians])
    return known(times, [60] * len(medians), (float(np.median(times)),), repeats=False)


def test_passes_that_differ_give_an_interval_of_their_medians() -> None:
    draw = np.random.default_rng(2)
    found = of_passes(np.exp(0.05 * draw.standard_normal(9)), draw)
    assert (found.unit, found.rank, found.reliable) == ("passes", 2, True)
    levels = np.exp(0.05 * draw.standard_normal(7))
    few = of_passes(levels, draw)
    assert (few.unit, few.reliable) == ("passes", True)
    assert few.low_s < 1.02 * min(levels) and few.high_s > 0.98 * max(levels)
    apart = of_passes(np.array([1.0, 20.0, 1.1]), draw)
    assert (apart.unit, apart.reliable) == ("samples", False)
    drifting = of_passes(1 + 0.05 * np.arange(9), draw)
    assert (drifting.unit, drifting.reliable) == ("samples", False)
    alike = of_passes(np.ones(9), draw)
    assert (alike.unit, alike.reliable) == ("samples", True)


@pytest.mark.parametrize("passes", [2, 3, 5, 7])
@pytest.mark.parametrize("effect", [0.0, 0.01, 0.02])
def test_intervals_of_few_passes_hold_the_median_whatever_passes_differ_by(
    passes: int, effect: float,
) -> None:
    """Differences that three passes do not show once left 75 % of intervals right."""
    draw, held = np.random.default_rng(passes), []
    for _ in range(300):
        found = of_passes(np.exp(effect * draw.standard_normal(passes)), draw)
        if found.reliable and found.low_s is not None and found.high_s is not None:
            held.append(found.low_s <= 1 <= found.high_s)
    assert len(held) > 200 and np.mean(held) >= 0.93 - 3 * (0.93 * 0.07 / 300) ** 0.5


def test_two_passes_that_agree_have_an_interval_that_is_not_much_wider() -> None:
    found = of_passes(np.ones(3), np.random.default_rng(3))
    assert found.reliable and found.low_s is not None and found.high_s is not None
    assert 0.97 < found.low_s < 1 < found.high_s < 1.03


@pytest.mark.parametrize(("passes", "level"), [(8, 0.93), (9, 0.95), (12, 0.93)])
def test_intervals_over_passes_hold_the_median_over_passes(passes: int, level: float) -> None:
    draw, held, judged = np.random.default_rng(passes), 0, 0
    for _ in range(300):
        found = of_passes(np.exp(0.05 * draw.standard_normal(passes)), draw)
        if found.reliable and found.low_s is not None and found.high_s is not None:
            judged += 1
            held += found.low_s <= 1 <= found.high_s
    assert judged > 280
    assert held >= level * judged


@given(st.lists(st.integers(1, 1000), min_size=FEWEST_LAUNCHES, max_size=30))
def test_from_six_launches_on_the_ends_are_launches_or_the_median(medians: list[int]) -> None:
    times = np.repeat(np.array(medians, dtype=float), 3)
    found = known(times, [3] * len(medians), tuple(map(float, medians)), repeats=False)
    assert found.low_s is not None and found.high_s is not None and found.rank is not None
    assert found.low_s <= np.median(times) <= found.high_s and found.reliable
    assert {found.low_s, found.high_s} <= {*medians, float(np.median(times))}
    assert found.unit == "launches"


@given(st.lists(st.integers(1, 10 ** 6), max_size=150), st.floats(0.1, 100.0))
def test_a_drift_is_of_ranks_and_has_no_unit(values: list[int], factor: float) -> None:
    runs, at = np.array(values, dtype=float), np.arange(float(len(values)))
    found = steady_drift(runs, at)
    assert (found is None) == (len(values) < FEWEST_RUNS)
    if found is not None:
        other, back = steady_drift(runs * factor, at), steady_drift(runs[::-1], at)
        assert other is not None and back is not None and abs(found.tau) <= 1
        assert other.tau == found.tau and other.change == pytest.approx(found.change)
        if len(values) <= 64:  # longer ones are cut into blocks from the front
            assert back.tau == -found.tau and back.change == pytest.approx(-found.change)


def test_a_steady_drift_is_seen_and_a_small_one_is_not_reported() -> None:
    at = np.arange(40.0)
    found = steady_drift(1 + 0.2 * at / 39, at)
    assert found is not None and found.significant and found.change == pytest.approx(0.2 / 1.1)
    small = steady_drift(1 + 0.02 * at / 39, at)
    assert small is not None and small.tau == 1 and not small.significant


def test_the_error_rates_are_as_stated() -> None:
    """The benchmark ends with 1 if more than 1 % of some kind of stationary series is reported."""
    done = subprocess.run(
        [sys.executable, "benchmarks/error_rates.py", "--series", "400", "--runs", "8", "20",
         "--launches", "3"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    alike = done.stdout.partition("launches alike")[2].splitlines()[1].split()
    assert alike[:2] == ["3", "launches"] and 40 < float(alike[2]) < 100

"""Intervals over launches against scipy, drift, and what chance alone makes: much is simulated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcbench.kinds.training.derive.dispersion import MIN_N, chance_of_excess, dispersion
from hpcbench.reduce.timing import CI_LEVEL, FEWEST_LAUNCHES, Precision, precision_of
from hpcbench.statistics.interval import (
    Inflation,
    lag1_correlation,
    median_interval,
    median_ranks,
    normal_of_t,
    over_launches,
    ranks,
    segments_differ,
    t_of_normal,
)
from hpcbench.statistics.order import Values, high_outliers
from hpcbench.statistics.steady import FEWEST_RUNS, steady_drift, trend

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


LEVELS = (0.9, 0.95, 0.99, 0.999)
some_values = st.lists(st.integers(0, 50), min_size=30, max_size=80)


@pytest.mark.parametrize("level", LEVELS)
def test_ranks_are_the_binomial_ones(level: float) -> None:
    for n in (*range(1, 500), 999, 1000, 10_000, 100_000):
        found, tail = median_ranks(n, level), (1 - level) / 2
        lowest, highest = found or (0, n + 1)
        assert highest == n + 1 - lowest
        assert not lowest or stats.binom.cdf(lowest - 1, n, 0.5) <= tail
        assert stats.binom.cdf(lowest, n, 0.5) > tail


@pytest.mark.parametrize("level", LEVELS)
def test_scores_of_t(level: float) -> None:
    z = stats.norm.ppf((1 + level) / 2)
    for degrees in range(6, 400):
        t = stats.t.ppf((1 + level) / 2, degrees)
        assert t_of_normal(z, degrees) == pytest.approx(t, rel=0.013)
        assert normal_of_t(t, degrees) == pytest.approx(z, rel=0.006)


@given(some_values)
def test_ranks_share_ties(values: list[int]) -> None:
    assert ranks(np.array(values, dtype=float)).tolist() == stats.rankdata(values).tolist()


def test_lag1_correlation_is_about_pearson_of_neighbours() -> None:
    """About: Pearson takes the mean and variance of each side, this those of all values."""
    for values in np.random.default_rng(0).standard_normal((50, 1000)).cumsum(axis=1) % 7:
        expected = stats.pearsonr(values[1:], values[:-1]).statistic
        assert lag1_correlation(values) == pytest.approx(expected, abs=0.01)


@given(st.lists(st.lists(st.floats(0, 1000), min_size=8, max_size=20, unique=True),
                min_size=2, max_size=6))
def test_segments_differ_as_by_kruskal_and_wallis(segments: list[list[float]]) -> None:
    values = np.concatenate([np.array(segment) for segment in segments])
    if np.unique(values).size < values.size:
        return  # scipy corrects for ties, which times in ns have hardly any of
    p = stats.kruskal(*segments).pvalue
    if abs(p - 0.01) > 0.001:
        assert segments_differ(
            ranks(values), [len(item) for item in segments], Inflation(1.0)) == (p < 0.01)


@given(some_values)
def test_slope_is_that_of_theil_and_sen(values: list[int]) -> None:
    array = np.array(values, dtype=float) + 1
    found = trend(array)
    slope = stats.theilslopes(array).slope
    assert found.change == pytest.approx(slope * array.size / np.median(array))


def test_p_is_that_of_mann_and_kendall() -> None:
    """Kendall's tau of time and value is the same test; dependence only ever makes p larger."""
    cases = np.random.default_rng(0).standard_normal((100, 200)) + 100
    ratios = np.array([
        trend(case).p / stats.kendalltau(np.arange(200), case, method="asymptotic").pvalue
        for case in cases])
    assert np.all(ratios > 0.99)
    assert np.mean(ratios < 1.02) > 0.85


@given(some_values)
def test_high_outliers_by_the_mad(values: list[int]) -> None:
    array = np.array(values, dtype=float)
    limit = np.median(array) + 10 * stats.median_abs_deviation(array)
    assert high_outliers(array).tolist() == (array > limit).tolist()


@pytest.mark.parametrize("degrees", [6, 10, 30, 200])
@pytest.mark.parametrize("num_segments", [2, 3, 5])
def test_segments_with_an_uncertain_inflation_as_by_fisher(
        num_segments: int, degrees: int) -> None:
    """The least shift of a segment that differs is that of F; both tails are 1 %."""
    limit = stats.f.ppf(0.99, num_segments - 1, degrees)
    n = 20 * num_segments
    for ratio, differs in ((0.93, False), (1.07, True)):
        ranked = stats.rankdata(np.random.default_rng(0).standard_normal(n))
        spread = stats.kruskal(*np.split(ranked, num_segments)).statistic / (num_segments - 1)
        assert segments_differ(ranked, [20] * num_segments,
                               Inflation(spread / (ratio * limit), degrees)) == differs


def test_distributions_are_loaded_alone_and_leave_scipy_whole() -> None:
    code = ("import sys; from hpcbench.statistics.distributions import distributions as of\n"
            "tail = of().stdtr(3, -2.0)\n"
            "assert not {'scipy.special', 'numpy.f2py'} & set(sys.modules)\n"
            "import scipy.special as whole; from scipy.stats import t\n"
            "assert whole.stdtr(3, -2.0) == tail and t.sf(2.0, 3) > 0\n"
            "assert of().fdtrc(1, 2, 3.0) == whole.fdtrc(1, 2, 3)\n"
            "assert of().chdtrc(2, 3.0) == whole.chdtrc(2, 3)\n"
            "assert of().stdtrit(3, 0.025) == whole.stdtrit(3, 0.025)\n")
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


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

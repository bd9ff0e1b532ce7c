"""The closed forms against scipy, which takes 0.6 s to import: too long where samples are taken."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from hpcbench.statistics.interval import (
    Inflation,
    lag1_correlation,
    median_ranks,
    normal_of_t,
    ranks,
    segments_differ,
    t_of_normal,
)
from hpcbench.statistics.order import high_outliers
from hpcbench.statistics.steady import trend

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

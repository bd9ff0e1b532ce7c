"""Which rank stands out among equal ones: named where one does, in 1 % of reports by chance."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.reduce.comparison import (
    Comparison,
    clear,
    compared,
    comparison_counts,
    holm_corrected,
)
from hpcbench.statistics.hypothesis_tests import (
    MOST_CORRELATION,
    correlated_passes,
    find_slowest,
    holm,
    largest_correlation,
    launches_differ,
    pass_medians,
    shifts_in_launches,
    shifts_of,
    tail_of_two,
)
from hpcbench.statistics.order import t_quantile, t_tail

SEED, REPORTS = 20_261_122, 200


@pytest.mark.parametrize(("t", "degrees", "tail"), [
    (0.0, 3, 0.5), (1.0, 1, 0.25), (6.314, 1, 0.05), (2.920, 2, 0.05), (9.925, 2, 0.005),
    (2.015, 5, 0.05), (3.467, 24, 0.001), (-2.920, 2, 0.95), (math.inf, 2, 0.0)])
def test_tails_are_those_of_printed_tables(t: float, degrees: int, tail: float) -> None:
    assert t_tail(t, degrees) == pytest.approx(tail, rel=0.02, abs=1e-12)


@given(st.floats(-50, 50), st.integers(1, 200))
def test_tails_of_both_sides_add_up_and_quantiles_are_inverse(t: float, degrees: int) -> None:
    tail = t_tail(t, degrees)
    assert tail + t_tail(-t, degrees) == pytest.approx(1)
    if 1e-12 < tail < 0.5:
        assert t_quantile(tail, degrees) == pytest.approx(t, rel=1e-6, abs=1e-6)


def test_of_two_degrees_the_tail_is_that_of_the_closed_form() -> None:
    for t in (0.5, 10.0, 1e4):
        assert t_tail(t, 2) == pytest.approx(0.5 - t / (2 * math.sqrt(2 + t * t)), rel=1e-6)


def test_passes_count_as_dependent_where_the_rows_of_a_report_depend() -> None:
    random = np.random.default_rng(3)
    noise = 0.05 * random.standard_normal((30, 9))
    for row, shift in zip(noise, shifts_of([*noise]), strict=True):
        t = abs(row.mean()) / row.std(ddof=1) * 3
        assert shift.chance == pytest.approx(2 * t_tail(t, 8), rel=0.01)
        low, high = shift.interval.ends
        assert high - low == pytest.approx(2 * t_quantile(0.025, 8) * row.std(ddof=1) / 3, rel=0.01)
    rows = [*(noise[:, 1:] + 0.5 * noise[:, :-1])]
    once, twice = shifts_of(rows), shifts_of([*rows, *rows], [0.5] * 60)
    assert [one.interval for one in twice[:30]] == [one.interval for one in once]
    for at in range(1, 9):
        noise[:, at] = 0.8 * noise[:, at - 1] + 0.6 * noise[:, at]
    assert min(shift.chance for shift in shifts_of([*noise])) > 0.01
    (alone,) = shifts_of([0.7 + 1e-4 * random.standard_normal(9)])
    assert alone.chance == pytest.approx(2 / 2 ** 9, rel=0.5)  # no other row bears it out


def test_launches_are_the_unit_where_they_differ_in_a_row_or_over_all_rows() -> None:
    random = np.random.default_rng(4)
    rows = 0.05 * random.standard_normal((400, 3, 3))
    seen = np.mean([any(launches_differ([[*row]])) for row in rows])
    assert seen == pytest.approx(0.05, abs=0.03)
    rows += 0.05 * random.standard_normal((400, 3, 1))  # too little for most single rows
    assert np.mean([all(launches_differ([[*row] for row in part]))
                    for part in rows.reshape(40, 10, 3, 3)]) > 0.9
    few, alone = shifts_in_launches([[np.array([0.4, 0.41]), np.array([0.1, 0.11])],
                                     [np.array([0.4]), np.array([0.5])]])
    assert (few.n, few.of_launches, alone.n, alone.of_launches) == (2, True, 2, False)
    (one,) = shifts_in_launches([[np.array([0.4, 0.41, 0.39])]])
    assert (one.n, one.of_launches) == (3, False) and shifts_in_launches([]) == []


def test_a_family_of_tests_is_stricter_than_each() -> None:
    assert holm([0.009], 0.01) == [True]
    assert holm([0.009, 0.9], 0.01) == [False, False]
    assert holm([0.006, 0.9, 0.001], 0.01) == [False, False, True]
    assert holm([0.004, 0.9, 0.001, 0.0001], 0.02) == [True, False, True, True]


@given(st.lists(st.floats(0, 1), max_size=20))
def test_what_holds_in_a_family_holds_alone_and_all_that_are_as_likely(
    chances: list[float],
) -> None:
    holds = holm(chances, 0.05)
    for chance, is_held in zip(chances, holds, strict=True):
        assert chance <= 0.05 or not is_held
        assert is_held or chance * max(len(chances), 1) > 0.05


def test_who_is_slow_in_each_pass_stands_out_by_the_difference_to_the_next() -> None:
    medians = np.array([[1.0, 1.01, 0.99], [1.5, 1.51, 1.52], [1.1, 1.09, 1.1]])
    found = find_slowest(medians, 0.01)
    assert (found.row, found.next_row) == (1, 2)
    assert found.apart_s == pytest.approx(0.4133, abs=1e-3)
    assert found.low_s < found.apart_s < found.high_s
    assert found.chance < 0.1  # of three passes, which may depend on one another


def test_a_difference_that_does_not_matter_is_none_however_sure() -> None:
    medians = np.array([[1.0, 1.0, 1.0], [1.005, 1.005, 1.005]])
    assert find_slowest(medians, 0.01).chance == 1.0
    assert find_slowest(medians, 0.001).chance == 0.0


def ar1(rng: np.random.Generator, ranks: int, passes: int, correlation: float) -> np.ndarray:
    """Return stationary noise of standard deviation 1, (rank, pass)."""
    noise = rng.standard_normal((ranks, passes))
    for at in range(1, passes):
        noise[:, at] = (correlation * noise[:, at - 1]
                        + math.sqrt(1 - correlation ** 2) * noise[:, at])
    return noise


def test_the_chance_is_of_any_of_the_ranks() -> None:
    """Of 4 equal ranks any one may be the latest: 4 times the tail of the rank that is.

    Three passes leave any correlation possible, so the largest is reckoned with.
    """
    medians = np.array([[1.0, 1.02, 0.99], [1.5, 1.53, 1.54], [1.0, 0.99, 1.01], [1.01, 1.0, 1.0]])
    found = find_slowest(medians, 0.05)
    rest = medians - medians.mean(axis=0)
    rest -= rest.mean(axis=1, keepdims=True)
    between = medians[1] - medians[0]
    passes = correlated_passes(3, MOST_CORRELATION)
    error = math.sqrt(max(2 * (rest ** 2).sum() / 6, between.var(ddof=1)) * passes.inflation / 3)
    assert (found.row, found.next_row, found.correlation) == (1, 0, MOST_CORRELATION)
    expected = 4 * t_tail((between.mean() - 0.05) / error, 3 * passes.degrees)
    assert 0.0001 < expected < 1
    assert found.chance == pytest.approx(expected)


@pytest.mark.parametrize("correlation", [0.0, 0.5, 0.9])
@pytest.mark.parametrize("n", [3, 9, 20])
def test_what_passes_show_of_their_mean_is_as_simulated(n: int, correlation: float) -> None:
    noise = ar1(np.random.default_rng(SEED), 20_000, n, correlation)
    known, shown = correlated_passes(n, correlation), noise.var(axis=1, ddof=1) / n
    assert noise.mean(axis=1).var() / shown.mean() == pytest.approx(known.inflation, rel=0.05)
    assert 2 * shown.mean() ** 2 / shown.var() == pytest.approx(known.degrees, rel=0.08)
    if not correlation:
        assert (known.inflation, known.degrees) == (pytest.approx(1), pytest.approx(n - 1))


def test_many_passes_rule_out_a_correlation_that_few_leave_possible() -> None:
    rng = np.random.default_rng(SEED)

    def largest(ranks: int, passes: int, correlation: float) -> float:
        apart = ar1(rng, ranks, passes, correlation)
        apart -= apart.mean(axis=0)
        return largest_correlation(apart - apart.mean(axis=1, keepdims=True))

    assert largest(2, 3, 0.0) == largest(16, 3, 0.0) == largest(2, 9, 0.0) == MOST_CORRELATION
    assert largest(16, 20, 0.0) < 0.4
    for _ in range(200):
        assert largest(16, 20, 0.5) >= 0.5


@pytest.mark.parametrize("passes", [(30,), (15, 15), (10, 10, 4), ()])
def test_few_passes_and_few_steps_show_nothing(passes: tuple[int, ...]) -> None:
    times = np.ones((2, sum(passes)))
    assert pass_medians(times, passes) is None
    assert compared("ready", (0, 1), None, 0.1) == Comparison("ready")


@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_a_report_of_equal_ranks_names_any_in_one_of_hundred_at_most(ranks: int) -> None:
    """Whatever lasts for a pass: a rank has a speed of its own in each, and each row differs."""
    rng, named = np.random.default_rng(SEED), 0
    for _ in range(REPORTS):
        rows = [compared("ready", range(ranks), rng.lognormal(0, 0.05, (ranks, 3)), 0.01)
                for _ in range(6)]
        named += any(one.is_clear for one in holm_corrected(rows))
    assert named <= 7  # with an error rate of 1 % more has a probability of 0.1 %


@pytest.mark.parametrize("correlation", [0.3, 0.7, 0.9])
@pytest.mark.parametrize(("ranks", "passes"), [(2, 3), (2, 9), (4, 9), (2, 20), (16, 9)])
def test_passes_that_depend_on_one_another_name_no_more(
    ranks: int, passes: int, correlation: float,
) -> None:
    rng, named = np.random.default_rng(SEED), 0
    for _ in range(REPORTS):
        medians = 1 + 0.05 * ar1(rng, ranks, passes, correlation)
        (found,) = holm_corrected([compared("ready", range(ranks), medians, 0.01)])
        named += found.is_clear
    assert named <= 7  # with an error rate of 1 % more has a probability of 0.1 %


def test_a_rank_whose_state_lasts_for_a_launch_is_named_where_it_lasts_for_all_of_them() -> None:
    random, launches = np.random.default_rng(SEED), np.repeat([0, 1, 2], 9)
    for slow, is_named in (((1.5, 1.5, 1.0), False), ((1.5, 1.5, 1.5), True)):
        medians = random.lognormal(0, 0.005, (4, 27))
        medians[1] *= np.array(slow)[launches]
        (known,) = holm_corrected([compared("ready", range(4), medians, 0.01)])
        assert (known.rank, known.is_clear) == (1, is_named)


@pytest.mark.parametrize("correlation", [0.5, 0.9])
@pytest.mark.parametrize("n", [3, 9])
def test_thetail_of_two_ranks_is_exact(n: int, correlation: float) -> None:
    for t in (0.5, 2.0, 8.0):
        assert tail_of_two(t, n, 0.0) == pytest.approx(t_tail(t, n - 1), rel=1e-4)
    noise = ar1(np.random.default_rng(SEED), 40_000, n, correlation)
    seen = noise.mean(axis=1) / (noise.std(axis=1, ddof=1) / math.sqrt(n))
    for t in (2.0, 8.0, 20.0):
        share = float(np.mean(seen > t))
        error = math.sqrt(max(share, 1e-4) / 40_000)
        assert tail_of_two(t, n, correlation) == pytest.approx(share, abs=4 * error)


@pytest.mark.parametrize(("ranks", "passes", "least"), [(4, 3, 0), (4, 9, 95), (2, 9, 50)])
def test_a_slow_rank_is_found_among_all_comparisons(
    ranks: int, passes: int, least: int,
) -> None:
    """20 % beside noise of 1 %: nine passes show it, of three hardly anything can be told."""
    rng, found = np.random.default_rng(SEED), 0
    for _ in range(100):
        medians = rng.lognormal(0, 0.01, (ranks, passes))
        medians[1] *= 1.2
        rows = [compared("forward", range(ranks), rng.lognormal(0, 0.01, (ranks, passes)), 0.01)
                for _ in range(10)]
        judged = [*holm_corrected(
            [*rows, compared("ready", range(ranks), medians, 0.01), Comparison("few")])]
        late = clear(judged, "ready")
        found += late is not None and late.rank == 1
        counts = comparison_counts(judged)
        assert (counts["n_made"], counts["n_too_few"]) == (11, 1)
    assert found >= least

from __future__ import annotations

import itertools
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.stopping import (
    LEAST_PASS_S,
    Decision,
    StopRule,
    checkpoints,
    decide,
    next_checkpoint,
)
from statistics_series import STATIONARY_KINDS, TRUE_MEDIAN, series_of

RULE = StopRule(min_n=30, max_n=1000, target=0.01, budget_s=60)
FIXED = replace(RULE, min_n=40, max_n=40)
counts = st.tuples(st.integers(1, 200), st.integers(0, 2000)).map(
    lambda pair: StopRule(pair[0], sum(pair), 0.01, 10.0))


def times(n: int, spread: float = 0.1) -> npt.NDArray[np.int64]:
    rng = np.random.default_rng(n)
    return (1e6 * np.exp(spread * rng.standard_normal(n))).astype(np.int64)


def test_checkpoints_of_the_defaults() -> None:
    assert list(itertools.islice(checkpoints(RULE), 4)) == [30, 45, 68, 102]
    assert list(checkpoints(FIXED)) == [40]


@given(counts)
def test_checkpoints_rise_from_least_to_most(rule: StopRule) -> None:
    found = list(checkpoints(rule))
    assert found[0] == rule.min_n and found[-1] == rule.max_n
    assert all(a < b <= 1.5 * a + 1 for a, b in itertools.pairwise(found))


@pytest.mark.parametrize("values", [
    {"min_n": 0}, {"min_n": 1001}, {"target": -0.1}, {"budget_s": 0}, {"level": 1},
    {"target": float("nan")}])
def test_impossible_rules_are_refused(values: dict[str, float]) -> None:
    with pytest.raises(ValueError):
        replace(RULE, **values)


def test_narrow_enough_is_converged() -> None:
    found = decide(RULE, times(30, spread=0.001), 1.0)
    assert found.reason == "converged"
    assert found.half_width is not None and found.half_width <= RULE.target


@pytest.mark.parametrize(("elapsed_s", "budget_s", "reason"), [
    (0.09, 60, None), (0.1, 60, "converged"), (0.06, 0.05, "budget")])
def test_samples_of_a_moment_do_not_end_a_pass(
    elapsed_s: float, budget_s: float, reason: str | None,
) -> None:
    """Passes of a few milliseconds agreed in themselves, and not with one another."""
    rule = replace(RULE, least_s=LEAST_PASS_S, budget_s=budget_s)
    assert decide(rule, times(30, spread=0.001), elapsed_s).reason == reason


def test_too_wide_goes_on() -> None:
    found = decide(RULE, times(30), 1.0)
    assert found.reason is None
    assert found.half_width is not None and found.half_width > RULE.target


def test_not_before_the_least_count() -> None:
    assert decide(RULE, times(29, spread=0.0), 1.0).reason is None


def test_half_width_is_that_of_the_interval() -> None:
    values = times(200)
    interval = median_interval(values.astype(float), RULE.level)
    width = (interval.high - interval.low) / 2 / np.median(values)
    assert decide(RULE, values, 1.0).half_width == pytest.approx(width)


@pytest.mark.parametrize(("n", "elapsed_s", "reason"), [
    (100, 59.9, None), (100, 60.0, "budget"), (3, 60.0, "budget"), (1000, 1.0, "max_iterations"),
    (1000, 60.0, "max_iterations")])
def test_bounds(n: int, elapsed_s: float, reason: str | None) -> None:
    assert decide(replace(RULE, target=0), times(n), elapsed_s).reason == reason


def test_nothing_measured_is_nothing_to_decide() -> None:
    assert decide(RULE, times(0), 100.0) == Decision(None, None)


@pytest.mark.parametrize(("n", "reason"), [(1, None), (39, None), (40, "fixed")])
def test_a_fixed_count_is_honoured(n: int, reason: str | None) -> None:
    """Neither perfect agreement nor an empty budget ends it."""
    assert decide(FIXED, times(n, spread=0.0), 1e6).reason == reason
    assert next_checkpoint(FIXED, min(n, 39), 1e6) == 40


def test_an_unreliable_interval_goes_on() -> None:
    """A slow wave within the target's width: narrow, but what else may come is not known."""
    wave = (1e6 * (1 + 0.005 * np.sin(np.arange(30) / 5))).astype(np.int64)
    found = decide(RULE, wave, 1.0)
    assert found.half_width is not None and found.half_width <= RULE.target
    assert found.reason is None


def test_a_handful_of_values_that_count_as_independent_goes_on() -> None:
    """30 values of AR(0.8) are about 5: narrow, but by how much is not known."""
    values = (1e6 * series_of("autoregressive", 20, 30) ** 0.02).astype(np.int64)
    found = [decide(RULE, one, 1.0) for one in values]
    assert all(one.half_width is not None and one.half_width <= RULE.target for one in found)
    assert np.mean([one.reason is None for one in found]) > 0.8


def test_passes_that_differ_go_on() -> None:
    values = times(60, spread=0.001)
    values[30:] += 5000
    assert decide(RULE, values, 1.0, [30, 30]).reason is None


def test_a_time_of_zero_has_no_relative_width() -> None:
    assert decide(RULE, np.zeros(30, dtype=np.int64), 1.0) == Decision(None, None)


@given(counts, st.integers(1, 2000), st.floats(0, 20))
def test_the_next_checkpoint_is_ahead_and_not_past_the_planned(
        rule: StopRule, n: int, elapsed_s: float) -> None:
    n = min(n, rule.max_n - 1)
    if n < 1:
        return
    found = next_checkpoint(rule, n, elapsed_s)
    assert n < found <= min(count for count in checkpoints(rule) if count > n)
    if found > n + 1 and not rule.is_fixed:
        assert elapsed_s / n * found <= rule.budget_s * (1 + 1e-9)


def test_the_first_iteration_shows_the_pace() -> None:
    assert next_checkpoint(RULE, 0, 0.0) == 1
    assert next_checkpoint(RULE, 1, 0.001) == 30
    assert next_checkpoint(RULE, 1, 10.0) == 6
    assert next_checkpoint(FIXED, 0, 0.0) == 40


@pytest.mark.parametrize("iteration_s", [0.001, 0.07, 3.0, 45.0, 200.0])
def test_the_budget_is_overrun_by_one_iteration_at_most(iteration_s: float) -> None:
    rule, values = replace(RULE, target=0), times(1000)
    n, decisions, found = 0, 0, Decision(None, None)
    while found.reason is None:
        n = next_checkpoint(rule, n, n * iteration_s)
        found = decide(rule, values[:n], n * iteration_s)
        decisions += 1
    assert n * iteration_s < 60 + 1.01 * iteration_s
    assert found.reason == ("max_iterations" if iteration_s < 0.06 else "budget")
    assert decisions < 20


def test_deciding_takes_a_few_sorts_of_time() -> None:
    """10,000 values take 2 ms; anything that compares all pairs would take a hundred sorts."""
    values = times(10_000)

    def least_s(action: Callable[[], object]) -> float:
        spent = []
        for _ in range(7):
            start = time.process_time_ns()
            action()
            spent.append(time.process_time_ns() - start)
        return min(spent) / 1e9

    assert least_s(lambda: decide(RULE, values, 1.0)) < 40 * least_s(lambda: np.sort(values))


def stopped_at(rule: StopRule, values: npt.NDArray[np.int64]) -> int:
    return next(n for n in checkpoints(rule) if decide(rule, values[:n], 0.0).reason)


def coverage_when_stopped(kind: str, cases: int, target: float) -> tuple[float, float]:
    """Return the coverage of the 95 % interval at the end, and the share flagged unreliable."""
    rule = StopRule(30, 3000, target, 1e9)
    hits = []
    for case in (1e9 * series_of(kind, cases, 3000)).astype(np.int64):
        found = median_interval(case[:stopped_at(rule, case)].astype(float))
        if found.reliable:
            hits.append(found.low <= 1e9 * TRUE_MEDIAN <= found.high)
    return float(np.mean(hits)), 1 - len(hits) / cases


@pytest.mark.parametrize("kind", ["log_normal", "ticks", "autoregressive_3", "autoregressive"])
def test_looking_again_and_again_keeps_the_coverage(kind: str) -> None:
    held, flagged = coverage_when_stopped(kind, 150, 0.05)
    assert held >= 0.93 and flagged <= 0.05


@pytest.mark.soak
@pytest.mark.parametrize("target", [0.1, 0.05, 0.02])
@pytest.mark.parametrize("kind", STATIONARY_KINDS)
def test_coverage_when_stopped(kind: str, target: float) -> None:
    held, flagged = coverage_when_stopped(kind, 1000, target)
    assert held >= 0.93 and flagged <= 0.05

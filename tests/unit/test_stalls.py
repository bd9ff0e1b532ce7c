"""Which rank makes the others wait, and which stands out: named where one does, and only there."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.kinds.training.derive.slow_ranks import SlowAlone, counted_steps
from hpcbench.kinds.training.derive.stalls import Stalls, sync_variance
from hpcbench.kinds.training.present.charts import findings, profile, stall_charts
from hpcbench.plan.case import Case
from hpcbench.reduce.comparison import (
    Comparison,
    clear,
    compared,
    comparison_counts,
    holm_corrected,
)
from hpcbench.reduce.metric import Values
from hpcbench.reduce.records import Observations, with_records
from hpcbench.reduce.results import Arrival, CaseResult, CaseSamples
from hpcbench.reduce.stack import pass_slices
from hpcbench.statistics.hypothesis_tests import (
    MOST_CORRELATION,
    MOST_PASSES,
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
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME, Flag
from hpcbench.views.table import Line, Table
from results_factory import make_results
from training_cases import make_training, make_training_case
from training_results import trained

SEED = 20_260_302
MS, PASSES = 1_000_000, 3
Noise = npt.NDArray[np.float64]
CASE = make_training_case(make_training(dp=4), world_size=4)


def noise(rng: np.random.Generator, ranks: int, steps: int, correlation: float = 0.0) -> Noise:
    """Return right-skewed factors about 1, (rank, step), whose neighbours depend on one another."""
    values = rng.standard_normal((ranks, steps))
    for at in range(1, steps):
        values[:, at] = correlation * values[:, at - 1] + np.sqrt(
            1 - correlation**2) * values[:, at]
    return np.asarray(np.exp(0.1 * values))


def samples_of(
    compute_ns: Noise, *, sync_ns: Noise | float = 2 * MS, skew_ns: Noise | float = 0,
    phases: Mapping[str, Noise] | None = None, warmup: int = 2, buckets: int = 1,
) -> CaseSamples:
    """Return the stamps of steps that end together: what a rank computes sooner, it waits.

    ``skew_ns`` is how late ranks begin.
    """
    ranks, steps = compute_ns.shape
    ready = compute_ns + np.asarray(skew_ns)
    end = ready.max(axis=0) + sync_ns + 60 * MS * np.arange(steps)
    start = np.broadcast_to(60 * MS * np.arange(steps) + np.asarray(skew_ns), (ranks, steps))
    flags = np.zeros((ranks, steps), np.int64)
    flags[:, :warmup] = Flag.WARMUP
    exchange = end - (start + compute_ns)
    stamps = {"forward": compute_ns / 3, "backward": compute_ns * 2 / 3, "exchange": exchange,
              **{f"{ARRIVAL}{number}": compute_ns * number / buckets
                 for number in range(1, buckets + 1)}} if phases is None else phases
    other = np.full((ranks, steps), NO_DEVICE_TIME, np.int64)
    of_pass = np.maximum(0, np.arange(steps) - warmup) * PASSES // (steps - warmup)
    return CaseSamples(
        tuple(range(ranks)), np.zeros(steps, np.int64), of_pass,
        start.astype(np.int64), (end + np.zeros((ranks, steps))).astype(np.int64), other, other,
        flags, {name: values.astype(np.int64) for name, values in stamps.items()})


def arrived(item: CaseResult, samples: CaseSamples) -> CaseResult:
    """Return it with when ranks arrive in each pass, by the one clock that they read here."""
    buckets = sorted(int(name.removeprefix(ARRIVAL)) for name in samples.phases
                     if name.startswith(ARRIVAL))
    late_ns = samples.start_ns - samples.start_ns.min(axis=0)
    _, counted = counted_steps(item.case, samples)
    assert item.timing is not None and item.timing.steps is not None
    steps = replace(item.timing.steps, arrivals=tuple(
        Arrival(number, (), 0, 0.0, 0.0, tuple(
            tuple(np.median((late_ns + samples.phases[f"{ARRIVAL}{number}"])[:, part][
                :, counted[part]] / 1e9, axis=1).tolist()) for part in pass_slices(samples)))
        for number in buckets))
    return replace(item, timing=replace(item.timing, steps=steps))


def recorded(samples: CaseSamples, case: Case = CASE) -> Values:
    """Return the values of a report of one case, with what holds of its comparisons."""
    item = arrived(trained(case, 0.03), samples)
    observed = Observations()
    observed.add(item, samples)
    values: Values = with_records(make_results((item,)), observed=observed).record_of(item)
    return values


def found(samples: CaseSamples, case: Case = CASE) -> Stalls:
    known = recorded(samples, case)["stalls"]
    assert isinstance(known, Stalls)
    return known


def steady(slow: Mapping[int, float] | None = None, ranks: int = 4, steps: int = 62) -> Noise:
    """Return 20 ms of computing with 1 % of noise; a slow rank takes that many times as long."""
    factors = np.array([(slow or {}).get(rank, 1.0) for rank in range(ranks)])[:, None]
    return np.asarray(20 * MS * factors * noise(
        np.random.default_rng(SEED), ranks, steps) ** 0.1)


def test_the_rank_that_computes_longer_is_named_with_its_delay_and_its_share() -> None:
    known = found(samples_of(steady({2: 1.5})))
    last = known.last
    assert last is not None and last.rank == 2 and last.last_share == 1
    assert last.behind_s.value == pytest.approx(10e-3, rel=0.05)
    assert last.behind_s.low is not None and last.behind_s.high is not None
    assert 9e-3 < last.behind_s.low <= last.behind_s.value <= last.behind_s.high < 11e-3
    assert last.behind_share == pytest.approx(10 / 32, rel=0.05)
    assert last.phase == "backward" and last.phase_s == pytest.approx(20e-3 / 3, rel=0.05)
    assert known.n_steps == 60 and known.ranks == (0, 1, 2, 3)
    assert known.wait_s[2] == 0 and min(known.wait_s[:2]) > 9e-3
    assert known.stall_share is not None
    assert known.stall_share.value == pytest.approx(0.75 * 10 / 32, rel=0.05)


def test_start_skew_is_no_delay_but_the_others_wait_for_it() -> None:
    skew = np.array([0, 0, 0, 15.0])[:, None] * MS
    record = recorded(samples_of(steady(), skew_ns=skew))
    assert record["stalls"].last is None
    assert record["stalls"].stall_share.value == pytest.approx(0.75 * 15 / 37, rel=0.05)
    assert record["transfer"] == pytest.approx(35 / 37, rel=0.02)
    assert record["serialisation"] == pytest.approx(20 / 35, rel=0.05)


def test_ranks_that_are_slow_together_are_not_distinguished() -> None:
    """Two that share a core are late, and neither is the late one."""
    assert found(samples_of(steady({1: 1.5, 2: 1.5}))).last is None


def test_a_rank_that_is_slow_in_one_pass_only_is_not_named() -> None:
    compute = steady()
    compute[2, :22] *= 1.5
    known = found(samples_of(compute))
    assert known.last is None
    (passes,) = re.findall(r"use (\d+) passes", known.last_missing)
    assert 3 < int(passes) <= MOST_PASSES


@pytest.mark.parametrize(("changes", "case", "why"), [
    ({"phases": {"forward": steady()}}, CASE, "no stamp separates a rank's own work from waiting"),
    ({}, replace(CASE, mode="pipelined", batch=20), "20 steps, whose stamps are added up"),
])
def test_what_stamps_do_not_hold_is_not_reported(
    changes: dict[str, Any], case: Case, why: str,
) -> None:
    known = found(samples_of(steady({2: 1.5}), **changes), case)
    assert why in known.missing and known.last is None and known.stall_share is None


def test_one_rank_waits_for_nobody() -> None:
    alone = make_training_case(make_training("single", dp=1, calls=()), world_size=1)
    assert "one rank" in found(samples_of(steady(ranks=1)), alone).missing


def test_few_steps_name_nobody() -> None:
    known = found(samples_of(steady({2: 1.5}, steps=12)))
    assert known.last is None
    assert known.last_missing == "it takes 3 passes of 5 samples each"
    assert known.sync is None and known.sync_missing == "10 steps are fewer than 20"


def test_two_ranks_that_cannot_be_told_apart_have_a_reason_unless_they_are_alike() -> None:
    two = make_training_case(make_training("data", dp=2), world_size=2)
    drift = np.repeat([1.0, 2.0, 1.2], 20)[None, :] ** np.array([[0], [1]])
    noisy = steady({1: 1.5}, ranks=2) * np.hstack([np.ones((2, 2)), drift])
    for compute, is_known in ((noisy, False), (steady(ranks=2), True)):
        known = found(samples_of(np.asarray(compute)), two)
        assert known.last is None and (known.last_missing == "") is is_known
        texts = [line.text for line in shown(known, 2)[0]]
        assert sum("late rank: cannot tell" in text for text in texts) == 1 - is_known


def test_where_calls_block_the_first_bucket_counts() -> None:
    blocking = replace(CASE, backend="mpi")
    known = found(samples_of(steady({2: 1.5}), buckets=4), blocking)
    assert known.last is not None and known.last.rank == 2
    assert known.last.behind_s.value == pytest.approx(10e-3 / 4, rel=0.1)
    assert known.sync is None and "block" in known.sync_missing


def exchange(rng: np.random.Generator, stalled: float) -> CaseSamples:
    sync = 5 * MS * noise(rng, 1, 122)[0] ** 0.3
    sync[rng.random(122) < stalled] *= 4
    return samples_of(20 * MS * noise(rng, 4, 122) ** 0.3, sync_ns=sync)


def test_a_short_exchange_is_not_reported_however_it_varies() -> None:
    rng = np.random.default_rng(SEED)
    short = 1e-5 * noise(rng, 1, 60)[0] ** 9
    sync, _ = sync_variance(short, 0.02 * noise(rng, 4, 60) ** 0.1, np.full(60, 0.02))
    assert sync is not None and sync.chance < 0.01 and not sync.is_high


def test_the_stamps_of_a_rank_without_time_are_refused() -> None:
    none, missing = sync_variance(np.zeros(40), np.ones((2, 40)), np.ones(40))
    assert none is None and "median time is 0" in missing


def test_findings_are_sentences_with_shares_interval_and_evidence() -> None:
    item = trained(CASE)
    (text,) = findings(item, found(samples_of(steady({2: 1.5}))))
    assert text.startswith("rank 2 is the straggler in this launch: 9.8")
    assert "behind (99 % CI" in text and "its backward is 6." in text
    assert "31 %" in text and "100 % of 60 steps" in text
    (text,) = findings(item, found(exchange(np.random.default_rng(SEED), 0.2)))
    assert text.startswith("gradient exchange: high jitter (")
    assert not [*findings(item, found(samples_of(steady())))]


def shown(known: Stalls, ranks: int = 4) -> tuple[list[Line], list[Table]]:
    case = make_training_case(make_training(dp=ranks), world_size=ranks)
    both = [*profile([trained(case)], {case.case_id: {"stalls": known}})]
    return ([one for one in both if isinstance(one, Line)],
            [one for one in both if isinstance(one, Table)])


def test_a_profile_has_warnings_first_and_a_row_for_each_rank() -> None:
    lines, (table,) = shown(found(samples_of(steady({2: 1.5}))))
    assert [line.tone for line in lines] == ["warning", "plain", "plain"]
    assert lines[1].text.startswith("waiting for the slowest rank: 23.")
    assert "(CI " in lines[1].text and "60 steps" in lines[1].text
    assert [row.cells[0] for row in table.rows] == [0, 1, 2, 3]
    assert table.rows[2].cells[-1] == 0


def test_of_many_ranks_a_profile_shows_those_that_are_ready_last() -> None:
    slow = {number: 1 + number / 10 for number in range(20)}
    case = make_training_case(make_training(dp=20), world_size=20)
    _, (table,) = shown(found(samples_of(steady(slow, ranks=20)), case), 20)
    assert [row.cells[0] for row in table.rows] == [*range(19, 11, -1)]
    assert "12 ranks more" in table.notes[0].text


def test_a_profile_states_what_is_unknown_and_what_shows_it() -> None:
    lines, _ = shown(found(samples_of(steady(), phases={"forward": steady()})))
    assert lines[0].text.startswith("stragglers: unknown (ranks of data")
    assert '"communication": ["on", "off"]' in lines[0].text


@pytest.mark.parametrize("named", [False, True])
def test_a_slow_rank_without_communication_is_named_beside_what_is_unknown(named: bool) -> None:
    item = trained(CASE)
    slow = SlowAlone(1, 0.2, 0, 0.1, 2.0, 1.9, 2.2, "off")
    record = {"stalls": Stalls(missing="they wait within"), "slow_alone": slow if named else None}
    (line, *_) = (one.text for one in profile([item], {CASE.case_id: record})
                  if isinstance(one, Line))
    assert ("(2.00x; passes 1.90x to 2.20x)" in line) is named
    assert ("they wait within" in line) is not named


def test_the_figure_shows_who_waits_for_whom_where_something_stands_out() -> None:
    shares = {"forward": 0.2, "backward": 0.4, "exchange": 0.34, "optimizer": 0.05}
    item = trained(CASE, 0.032, shares)
    slow = {"stalls": found(samples_of(steady({2: 1.5})))}
    (figure,) = stall_charts([item], {CASE.case_id: slow})
    (section,) = figure.sections
    assert [bar.label for bar in section.bars] == ["rank 0", "rank 1", "rank 2", "rank 3"]
    parts = [{look.label: time_s for time_s, look in bar.segments} for bar in section.bars]
    assert parts[2]["waits for the last rank"] == 0
    assert parts[0]["waits for the last rank"] == pytest.approx(10e-3, rel=0.05)
    assert all(sum(part.values()) == pytest.approx(0.032) for part in parts)
    calm = {"stalls": found(samples_of(steady()))}
    assert not [*stall_charts([item], {CASE.case_id: calm})]


SEED_OF_RANKS, REPORTS = 20_261_122, 200


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
    noise = ar1(np.random.default_rng(SEED_OF_RANKS), 20_000, n, correlation)
    known, shown = correlated_passes(n, correlation), noise.var(axis=1, ddof=1) / n
    assert noise.mean(axis=1).var() / shown.mean() == pytest.approx(known.inflation, rel=0.05)
    assert 2 * shown.mean() ** 2 / shown.var() == pytest.approx(known.degrees, rel=0.08)
    if not correlation:
        assert (known.inflation, known.degrees) == (pytest.approx(1), pytest.approx(n - 1))


def test_many_passes_rule_out_a_correlation_that_few_leave_possible() -> None:
    rng = np.random.default_rng(SEED_OF_RANKS)

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
    rng, named = np.random.default_rng(SEED_OF_RANKS), 0
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
    rng, named = np.random.default_rng(SEED_OF_RANKS), 0
    for _ in range(REPORTS):
        medians = 1 + 0.05 * ar1(rng, ranks, passes, correlation)
        (found,) = holm_corrected([compared("ready", range(ranks), medians, 0.01)])
        named += found.is_clear
    assert named <= 7  # with an error rate of 1 % more has a probability of 0.1 %


def test_a_rank_whose_state_lasts_for_a_launch_is_named_where_it_lasts_for_all_of_them() -> None:
    random, launches = np.random.default_rng(SEED_OF_RANKS), np.repeat([0, 1, 2], 9)
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
    noise = ar1(np.random.default_rng(SEED_OF_RANKS), 40_000, n, correlation)
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
    rng, found = np.random.default_rng(SEED_OF_RANKS), 0
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

"""The topic conditions: drift over passes, lower clocks, lost cores; and what nothing tells."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt
import pytest

from hpcbench.analysis.conditions import (
    Conditions,
    conditions,
    conditions_charts,
    conditions_tables,
)
from hpcbench.analysis.disturbances import PassReadings, explained_rise, shares_of_nodes
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Answer, Run, TopicOptions
from hpcbench.answers.topics import TopicResult, summary_lines, topics
from hpcbench.reduce.results import Canary, CaseResult, Finding, RankTelemetry, TimeSeries, Usage
from hpcbench.reduce.topology import RankPlace, Topology
from hpcbench.statistics.steady import theil_sen
from results_factory import in_passes, make_canary, make_case, make_results, ok

PASS_NS, PASSES, RANKS = 1_000_000_000, 9, 2
STEADY = (1.0, 1.01, 0.99, 1.005, 0.995, 1.002, 0.998, 1.007, 0.993)
HIT = (0, 0, 1, 0, 0, 1, 0, 1, 0)
PLACES = Topology(tuple(RankPlace(rank, "node-a", None, None, None, None, None, None)
                        for rank in range(RANKS)))
Lost = npt.NDArray[np.float64]
Readings = Mapping[tuple[str, str], Sequence[TimeSeries]]


class Source:
    """Readings that a test made up."""

    def __init__(self, time_series: Readings) -> None:
        self._courses = time_series

    def samples(self, case_id: str) -> None:
        return None

    def time_series(self, table: str, column: str) -> Sequence[TimeSeries]:
        return self._courses.get((table, column), ())


def timed(factors: Sequence[float], *, index: int = 0, spans: int | None = None) -> CaseResult:
    """Return a case of 10 ms whose passes follow one another, a second each."""
    item = in_passes(make_case(index=index, world_size=RANKS), *(1e-2 * one for one in factors))
    count = len(factors) if spans is None else spans
    return replace(item, usage=Usage(count, spans_ns=tuple(
        (at * 2 * PASS_NS, at * 2 * PASS_NS + PASS_NS) for at in range(count))))


def asked(
    *items: CaseResult, readings: Readings | None = None, canary: Canary | None = None,
    missing: Mapping[str, str] | None = None, findings: tuple[Finding, ...] = (),
) -> Conditions:
    told = (RankTelemetry(0, 0, 2.0, missing=missing or {}),)
    results = replace(make_results(items, findings), telemetry=told, canary=canary, topology=PLACES)
    return conditions([Run("FILE", results, Source(readings or {}))], TopicOptions())


def clocks(lost: Lost) -> dict[tuple[str, str], Sequence[TimeSeries]]:
    """Return GPU clocks that are lower by these shares, (rank, pass)."""
    at = np.arange(lost.shape[1], dtype=np.int64) * 2 * PASS_NS + PASS_NS // 2
    return {("gpu", "sm_mhz"): [TimeSeries(rank, "gpu", at, (1400 * (1 - row)).astype(np.int64))
                                for rank, row in enumerate(lost)]}


def counter(rank: int, shares: Lost, scale: float = 1.0) -> TimeSeries:
    """Return a counter that rises by these shares of the time of each pass."""
    before = np.cumsum(shares) - shares
    edges = np.stack([before, before + shares], axis=1).ravel() * PASS_NS * scale
    at = np.arange(shares.size, dtype=np.int64) * 2 * PASS_NS
    return TimeSeries(rank, "all", np.stack([at, at + PASS_NS], axis=1).ravel(),
                  edges.astype(np.int64))


def waits(shares: Lost) -> dict[tuple[str, str], Sequence[TimeSeries]]:
    return {("process", "wait_ns"): [counter(rank, row) for rank, row in enumerate(shares)]}


def lost(*ranks: Sequence[float]) -> Lost:
    return np.array(ranks, dtype=np.float64)


def about(found: Conditions, word: str) -> Answer:
    (answer,) = (one for one in found.answers if word in one.sentence)
    return answer


def test_a_trend_has_an_exact_chance_and_an_interval() -> None:
    found = theil_sen(np.linspace(1.0, 1.2, 8), np.arange(8.0))
    assert found is not None and found.is_steady
    assert found.chance == pytest.approx(2 / 40320) and found.tau == 1
    assert found.change.low == pytest.approx(found.change.value) == pytest.approx(0.2 / 1.1)
    assert theil_sen(np.ones(7), np.arange(7.0)) is None
    level = theil_sen(np.array(STEADY), np.arange(9.0))
    assert level is not None and level.change.holds(0.0) and not level.is_steady


def test_what_a_condition_accounts_for() -> None:
    slowdowns = np.array([1.0, 1.1, 1.0, 1.2, 1.0])
    same = explained_rise(slowdowns, slowdowns)
    assert same is not None and same.share == 1
    assert same.effect.value == pytest.approx(0.2) and same.chance < 1e-6
    twice = explained_rise(slowdowns ** 2, slowdowns)
    assert twice is not None and twice.share == pytest.approx(0.5)
    assert explained_rise(slowdowns[:4], slowdowns[:4]) is None
    assert explained_rise(slowdowns, np.ones(5)) is None


def test_what_all_cases_have_in_common_is_stated_once() -> None:
    rising = np.linspace(0.9, 1.1, PASSES)
    found = asked(*(timed(rising * np.roll(STEADY, 2 * at) ** 0.2, index=at) for at in range(3)),
                  canary=replace(make_canary(*[1e-3] * 8), tau=0.0))
    answer = found.answers[0]
    assert answer.certainty == CLEAR and answer.subject == "all 3 cases together"
    assert "all 3 cases together gets slower by 20" in answer.sentence and "17 s" in answer.sentence
    assert "does not change steadily over 8 runs" in "\n".join(answer.evidence)
    assert [one.label for one in found.drifts if one.is_clear] == ["all 3 cases together"]
    (table,), (chart,) = conditions_tables(found), conditions_charts(found)
    assert len(table.rows) == len(chart.rows) == 1


def test_one_case_that_drifts_is_named_alone() -> None:
    falling = np.linspace(1.2, 0.9, PASSES)
    found = asked(timed(falling), *(timed(np.roll(STEADY, at), index=at) for at in (1, 2, 3)))
    (one,) = (one for one in found.drifts if one.is_clear)
    assert one.case_id and one.change == pytest.approx(-0.286, abs=0.01)
    assert "faster by 28" in found.answers[0].sentence


def test_passes_that_do_not_drift_state_what_is_excluded() -> None:
    answer = asked(timed(STEADY)).answers[0]
    assert answer.certainty == NONE and "at most 3.2 %" in answer.sentence
    (rising,), (falling,) = (asked(timed(np.linspace(1, last, PASSES) * STEADY)).drifts
                             for last in (1.3, 0.8))
    assert rising.reach == rising.high > rising.low > 0 and falling.reach == -falling.low


def test_few_and_unequal_passes_are_inconclusive() -> None:
    assert "needs 8 passes, not 3" in asked(
        timed(STEADY[:3])).answers[0].sentence
    wide = asked(timed([1.0 + 0.3 * (at % 2) for at in range(PASSES)])).answers[0]
    assert wide.certainty == CANNOT_TELL
    assert "in 1 case;" in wide.sentence  # the series of all cases together is none


def test_passes_that_were_not_run_are_reported() -> None:
    item = timed(STEADY)
    assert item.timing is not None
    item = replace(item, timing=replace(item.timing, pass_medians_s=(*STEADY[:8], None)))
    assert "1 case lack passes" in asked(item).answers[0].sentence


def test_a_canary_that_drifts_is_named_where_passes_are_few() -> None:
    drifting = replace(make_canary(*np.linspace(1e-3, 2e-3, 9), quality=("drifting",)), tau=1.0)
    answer = asked(timed(STEADY[:3]), canary=drifting).answers[0]
    assert answer.certainty == CLEAR and "drift: the canary" in answer.sentence


def test_a_canary_that_drifts_is_reported_once_at_the_end_of_a_run() -> None:
    drifting = replace(make_canary(*np.linspace(1e-3, 2e-3, 9), quality=("drifting",)), tau=1.0)
    item = timed(STEADY[:3])
    results = replace(make_results((item,)), canary=drifting)
    topic = next(one for one in topics() if one.name == "conditions")
    told = TopicResult(topic, asked(item, canary=drifting))
    lines = summary_lines(results, [told])
    assert sum("drift" in f"{line.topic} {line.text}" for line in lines) == 1
    assert sum("drift" in f"{line.topic} {line.text}" for line in summary_lines(results)) == 1


def test_lower_clocks_are_the_cause_where_times_follow_them() -> None:
    low = lost([0] * PASSES, [0.2 * one for one in HIT])
    slow = np.array(STEADY) / (1 - low.max(axis=0))
    found = asked(timed(slow), readings=clocks(low))
    answer = about(found, "throttling")
    assert answer.certainty == CLEAR and answer.subject == "rank 1 on node-a"
    assert "falls to 80%" in answer.sentence and "3 of 9 passes" in answer.evidence[0]
    (one,) = found.following
    assert one.effect == pytest.approx(0.25, abs=0.03) and one.share > 0.9


def test_clocks_that_account_for_half_of_it_are_not_the_cause() -> None:
    low = lost([0] * PASSES, [0.2 * one for one in HIT])
    found = asked(timed(np.array(STEADY) / (1 - low.max(axis=0)) ** 2), readings=clocks(low))
    answer = about(found, "throttling")
    assert answer.certainty == CANNOT_TELL and "explains only 50%" in answer.sentence


def test_a_clock_that_is_always_lower_than_the_others_is_named_with_a_bound() -> None:
    at = np.arange(PASSES, dtype=np.int64) * 2 * PASS_NS + PASS_NS // 2
    flat = np.full(PASSES, 1400) + np.arange(PASSES) % 2
    found = asked(timed(STEADY), readings={
        ("gpu", "sm_mhz"): [TimeSeries(0, "gpu", at, flat), TimeSeries(1, "gpu", at, flat - 200)],
        ("gpu", "celsius"): [TimeSeries(1, "gpu", at, flat // 17)]})
    answer = about(found, "low clock")
    assert answer.certainty == CLEAR and answer.subject == "rank 1"
    assert "the GPU of rank 1 on node-a" in answer.sentence
    assert "GPUs had at most 82 degrees C" in answer.evidence


def test_clocks_that_stay_and_clocks_that_nobody_read() -> None:
    steady = about(asked(timed(STEADY), readings=clocks(lost([0] * PASSES))), "throttling")
    assert steady.certainty == NONE and "at most 0 %" in steady.sentence
    unread = about(asked(timed(STEADY), missing={"gpu": "no NVIDIA GPU"}), "throttling")
    assert unread.certainty == CANNOT_TELL
    assert "GPU: no NVIDIA GPU" in unread.evidence


def test_clocks_that_were_lowered_all_the_time_have_no_known_cost() -> None:
    item = timed(STEADY)
    assert item.usage is not None
    item = replace(item, usage=replace(item.usage, throttled=True, throttled_by=("power cap",)))
    answer = about(asked(item, readings=clocks(lost([0] * PASSES))), "throttling")
    assert answer.certainty == CANNOT_TELL and "clocks fell" in answer.sentence
    assert "clocks were lowered (power cap) in 1 case" in answer.evidence


def test_a_rank_that_waits_for_a_core_in_some_passes_slows_them() -> None:
    taken = lost([0.02] * PASSES, [0.02 + 0.3 * one for one in HIT])
    found = asked(timed(np.array(STEADY) / (1 - taken.max(axis=0))), readings=waits(taken),
                  findings=(Finding("HB143", "note", "rank 1: other processes"),))
    answer = about(found, "CPU contention")
    assert answer.certainty == CLEAR and "rank 1 on node-a" in answer.sentence
    assert "2% to 32%" in answer.sentence and "3 of 9 passes" in answer.evidence[0]
    assert "HB143: rank 1: other processes" in answer.evidence


def test_a_pass_of_which_a_hypervisor_took_every_tick() -> None:
    taken = np.array([0.02 + 0.3 * one for one in HIT])
    times_s = np.array(STEADY) / (1 - taken)
    taken[HIT.index(0)] = 1.0
    shares = {"user": 1 - taken, "system": 0 * taken, "idle": 0 * taken, "steal": taken}
    found = asked(timed(times_s), readings={
        ("cpu", f"{name}_ns"): [counter(0, shares[name], 2)] for name in shares})
    assert CLEAR not in {one.certainty for one in found.answers}


def test_ranks_that_wait_in_turn_are_not_distinguished() -> None:
    hit = np.array(HIT, dtype=np.float64)
    turn = np.cumsum(hit) % 2
    taken = np.stack([0.3 * hit * turn, 0.3 * hit * (1 - turn)])
    answer = about(asked(timed(np.array(STEADY) / (1 - taken.max(axis=0))),
                         readings=waits(taken)), "CPU contention")
    assert "several ranks in turn" in answer.sentence


def test_a_rank_that_always_waits_is_named_with_a_bound() -> None:
    answer = about(asked(timed(STEADY), readings=waits(
        lost([0.01] * PASSES, [0.2 + 0.001 * at for at in range(PASSES)]))), "CPU contention")
    assert answer.certainty == CLEAR and answer.subject == "rank 1"
    assert "takes up to 26 % longer" in answer.sentence


def test_cores_that_others_use_all_the_time_have_no_known_cost() -> None:
    busy = np.full(PASSES, 0.5)
    used = {("cpu", f"{name}_ns"): [counter(0, busy * part, 2)] for name, part in
            (("user", 1), ("system", 0), ("idle", 1), ("steal", 0))}
    own = {("process", "cpu_ns"): [counter(rank, busy * 0.4) for rank in range(RANKS)]}
    answer = about(asked(timed(STEADY), readings={**used, **own, **waits(
        lost([0.01] * PASSES, [0.01] * PASSES))}), "other processes used 30 %")
    assert answer.certainty == CANNOT_TELL and "cost unknown" in answer.sentence


def test_other_processes_are_those_of_the_same_node() -> None:
    busy = np.full(PASSES, 0.5)
    cores = {("cpu", f"{name}_ns"): [counter(rank, busy * part) for rank in range(RANKS)]
             for name, part in (("user", 2), ("system", 0), ("idle", 2), ("steal", 0))}
    used = {("process", "cpu_ns"): [counter(0, busy * 0.4), counter(1, busy * 0)]}
    places = [replace(one, hostname=f"node-{one.rank}") for one in PLACES.ranks]
    results = replace(make_results((timed(STEADY),)), topology=Topology(tuple(places)),
                      telemetry=(RankTelemetry(0, 0, 2.0, missing={}),))
    (found,) = conditions([Run("FILE", results, Source({**cores, **used}))],
                          TopicOptions()).disturbed
    assert [one.value for one in found.others] == pytest.approx([(1 - 0.2) / 2, 1 / 2])


def test_a_share_over_cases_weighs_as_long_as_they_lasted() -> None:
    none = np.empty((0, 4))
    cases = [PassReadings(timed(STEADY), np.full(4, lasted), np.array(
        [[at * PASS_NS, at * PASS_NS + lasted * 1000] for at in range(4)]),
        none, none, np.full((1, 4), share), none) for lasted, share in ((1, 0.1), (3, 0.3))]
    (found,) = shares_of_nodes(cases, "steal")
    assert found.value == pytest.approx((1 * 0.1 + 3 * 0.3) / 4)


def test_nothing_was_disturbed() -> None:
    answer = about(asked(timed(STEADY), readings=waits(
        lost([0.01] * PASSES, [0.012] * PASSES))), "host noise")
    assert answer.certainty == NONE and "at most 1.2 % of a pass" in answer.sentence


def test_an_all_clear_stands_only_where_everything_was_seen() -> None:
    """Not beside the finding that others used the cores, nor of single samples."""
    quiet = make_results(tuple(ok(make_case(index=at)) for at in range(3)))
    noisy = replace(quiet, findings=(Finding("HB144", "note", "others used 4 % of each core"),))
    single = make_results((ok(make_case(iterations=1)),))
    for results, clear in ((quiet, True), (noisy, False), (single, False)):
        lines = [*summary_lines(results)]
        assert any(line.tone == "warning" for line in lines) != clear, lines


def test_waits_that_may_have_cost_much_are_no_all_clear() -> None:
    """All ranks wait for cores all the time, and no pass differs."""
    found = asked(timed(STEADY), readings=waits(lost([0.4] * PASSES, [0.41] * PASSES)))
    assert NONE not in {one.certainty for one in found.answers if "core" in one.sentence}


def test_readings_that_are_not_of_the_passes_are_not_used() -> None:
    found = asked(timed(STEADY, spans=4), readings=clocks(lost([0] * PASSES)))
    assert "no telemetry matches the passes" in about(found, "throttling").evidence[0]
    assert about(found, "host noise").certainty == CANNOT_TELL


def test_a_run_ends_with_it_only_if_something_was_found() -> None:
    (topic,) = (one for one in topics(of_summary=True) if one.name == "conditions")
    results = make_results(())
    (_,) = summary_lines(results, [TopicResult(topic, asked(timed(STEADY)))])
    drifting = asked(timed(np.linspace(1, 1.3, PASSES)))
    _, line = summary_lines(results, [TopicResult(topic, drifting)])
    assert line.topic == "drift" and "slower by" in line.text


def test_waits_whose_cost_noise_hides_name_rank_case_and_bound() -> None:
    """Times differ by a factor that no wait follows: what waits cost is open, not nothing."""
    noisy = np.asarray(STEADY) * (1 + 0.5 * np.random.default_rng(1).random(PASSES))
    turns = [0.29 if at % 3 else 0.02 for at in range(PASSES)]
    answer = about(asked(timed(noisy), readings=waits(
        lost([0.02] * PASSES, turns[::-1]))), "host noise")
    assert answer.certainty == CANNOT_TELL and "rank 1 waits" in answer.sentence
    assert "29 %" in answer.sentence and any("use more passes" in one for one in answer.evidence)

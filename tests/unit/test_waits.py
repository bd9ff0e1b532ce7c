"""The topic waits: stalls, an exchange that varies; slow compute, slow links and uneven work."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from hpcbench.analysis.waits import (
    COMPUTE,
    LINK,
    WORK,
    Cause,
    RankWaits,
    Stalled,
    cause_answers,
    causes_of,
    settled_causes,
    stalled_answers,
    waits,
    waits_charts,
    waits_tables,
)
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, NONE, Run, TopicOptions
from hpcbench.answers.topics import topics
from hpcbench.kinds.training.derive.deriver import rank_work, waiting
from hpcbench.reduce.kind_facts import EXCHANGE, OWN_WORK, RankWork, Variation
from hpcbench.reduce.results import CaseResult, CaseSamples, Steps
from results_factory import MemorySamples, make_case, make_results, ok
from test_stalls import Noise, arrived, recorded, samples_of, steady
from training_cases import make_training, make_training_case
from training_results import trained

PASSES, REPLICAS, STAGES = 5, 3, 4
RANKS = REPLICAS * STAGES
STALL = Stalled("FILE", "0", "x", 0.1, 0.08, 0.12, None, 0.0, None, "", is_clear=True)


def own_work(slow: dict[int, float], replicas: int = REPLICAS) -> RankWork:
    """Return own work of ranks; those of a stage have the same to do."""
    ranks = replicas * STAGES
    times = 0.01 * np.exp(np.random.default_rng(5).normal(0, 0.005, (ranks, PASSES)))
    for rank, factor in slow.items():
        times[rank] *= factor
    return RankWork(OWN_WORK, tuple(range(ranks)), tuple(map(tuple, times.tolist())),
                    tuple(rank % STAGES for rank in range(ranks)), "stage")


def named(work: RankWork) -> list[tuple[str, int]]:
    return [(one.cause, one.who) for one in settled_causes([*causes_of(work)]) if one.is_clear]


def test_a_slow_rank_is_compared_with_those_that_have_the_same_to_do() -> None:
    assert named(own_work({5: 1.2})) == [(COMPUTE, 5)]
    assert named(own_work({})) == []


def test_a_stage_that_is_slow_on_every_replica_is_uneven_work() -> None:
    slow = {rank: 1.2 for rank in range(RANKS) if rank % STAGES == 2}
    assert named(own_work(slow)) == [(WORK, 2)]
    assert named(own_work({**slow, 6: 1.5})) == [(COMPUTE, 6), (WORK, 2)]
    assert named(own_work({6: 1.5, 10: 1.5})) == [], "the third rank of the stage is as the others"


def test_a_stage_on_one_rank_shows_neither() -> None:
    assert named(own_work({2: 1.5}, replicas=1)) == []


def test_few_passes_show_nothing() -> None:
    work = own_work({5: 1.5})
    assert [*causes_of(replace(work, times_s=tuple(row[:2] for row in work.times_s)))] == []


def exchange(slow: float = 1.0, late_s: float = 0.0) -> RankWork:
    random = np.random.default_rng(6)
    times = 0.01 * np.exp(random.normal(0, 0.005, (4, PASSES)))
    ready = 0.02 * np.exp(random.normal(0, 0.001, (4, PASSES)))
    times[1] *= slow
    ready[1] += late_s
    return RankWork(EXCHANGE, (0, 1, 2, 3), tuple(map(tuple, times.tolist())), (0,) * 4, "",
                    tuple(map(tuple, ready.tolist())))


def test_an_exchange_that_takes_one_rank_longer_is_a_link_only_if_nobody_is_late() -> None:
    assert named(exchange(1.3)) == [(LINK, 1)]
    assert named(exchange(1.3, late_s=0.01)) == [] == named(exchange())


def of_training(compute: Noise) -> RankWaits:
    case = make_training_case(make_training(dp=4), world_size=4)
    item, record = trained(case, 0.03), recorded(samples_of(compute), case)
    results = replace(make_results((item,)), derived={"training": {case.case_id: record}})
    return waits([Run("FILE", results, MemorySamples(results))], TopicOptions())


def test_how_much_ranks_wait_and_who_is_the_cause() -> None:
    found = of_training(steady({2: 1.5}))
    (first,) = (one for one in found.answers if one.certainty == CLEAR)
    assert first.sentence.startswith("waiting for the slowest rank: 23 % (CI")
    assert "rank 2 causes" in first.evidence[0]
    (table,), (chart,) = waits_tables(found), waits_charts(found)
    assert table.rows[0].cells[3] == 2 and chart.rows[0].point.value == pytest.approx(0.23, 0.1)


def test_a_late_rank_explains_what_all_others_wait_for_it() -> None:
    """Of 10, 2, 0 and 10 ms that ranks wait, three times the 2 ms behind the next rank."""
    (one,) = of_training(steady({1: 1.4, 2: 1.5})).stalled
    assert (one.late_rank, one.late_share) == (2, pytest.approx(3 * 2 / 22, rel=0.1))


def test_equal_ranks_wait_little() -> None:
    found = of_training(steady())
    assert [one.certainty for one in found.answers if "waiting" in one.sentence] == [NONE]
    assert not [*waits_tables(found)] and not [*waits_charts(found)]


def test_a_late_rank_that_explains_half_of_it_is_not_the_cause() -> None:
    (first,) = stalled_answers([replace(STALL, late_rank=2, late_share=0.5)])
    assert "rank 2 causes 50% of it" in first.evidence[0]
    (first,) = stalled_answers([STALL])
    assert "no single straggler" in first.evidence[0]


def test_what_intervals_do_not_exclude_is_no_all_clear() -> None:
    (little,) = stalled_answers([replace(STALL, low=0.01, high=0.1, is_clear=False)])
    (much,) = stalled_answers([replace(STALL, low=0.01, high=0.5, is_clear=False)])
    assert (little.certainty, much.certainty) == (NONE, CANNOT_TELL)
    cause = Cause("FILE", "x", COMPUTE, 3, "", 1, 1e-3, -1e-3, 3e-3, 0.1, 1.0, 1.0, 0.15)
    found = [*cause_answers([cause, replace(cause, high_share=0.5)])]
    assert [one.certainty for one in found] == [NONE, CANNOT_TELL]
    both_vary = replace(STALL, variation=Variation(2.0, 2.0, 0.5, 1.0, is_high=False))
    assert [one.certainty for one in stalled_answers([both_vary])][1:] == [CANNOT_TELL]


@pytest.mark.parametrize(("share", "certainty"), [(0.1, CLEAR), (0.01, NONE)])
def test_an_exchange_that_varies_is_reported_from_a_share_of_the_call_on(
    share: float, certainty: str,
) -> None:
    varies = Variation(0.3, 0.1, share, 1e-6, is_high=True)
    _, answer = stalled_answers([replace(STALL, variation=varies)])
    assert answer.certainty == certainty


def test_what_stamps_do_not_hold_is_stated() -> None:
    (answer,) = stalled_answers([])
    assert answer.certainty == CANNOT_TELL
    missing = replace(STALL, share=None, is_clear=False, missing="a reason")
    (answer,) = stalled_answers([missing])
    assert answer.certainty == CANNOT_TELL and "a reason (1 case)" in answer.sentence
    (answer,) = stalled_answers([replace(STALL, low=None, high=None, is_clear=False)])
    assert answer.certainty == CANNOT_TELL and "too few steps for an interval" in answer.sentence


def test_each_cause_has_its_words() -> None:
    cause = Cause("FILE", "x", COMPUTE, 3, "stage", 1, 1e-3, 0.9e-3, 1.1e-3, 0.1, 1.0, 0.0, 0.11,
                  True)
    said = [answer.sentence for answer in cause_answers(
        [cause, replace(cause, cause=LINK), replace(cause, cause=WORK, ranks=3)])]
    assert "slow compute: rank 3, against ranks of the same stage" in said[0]
    assert "slow link: rank 3" in said[1]
    assert "uneven work: stage 3, on each of its 3 ranks, takes 1 ms (CI 0.9 to 1.1)" in said[2]


def test_nobody_is_slow_by_itself_and_nothing_decides() -> None:
    (answer,) = cause_answers([*settled_causes([*causes_of(own_work({}))])])
    assert answer.certainty == NONE and "5 checks" in answer.sentence
    (answer,) = cause_answers([])
    assert answer.certainty == CANNOT_TELL
    assert "needs 3 passes" in answer.sentence


def never() -> CaseSamples | None:
    raise AssertionError("samples are read")


def test_steps_without_communication_give_the_own_work_of_each_stage() -> None:
    work = make_training("pipeline", dp=2, pp=2, communication="off")
    item = trained(make_training_case(work, world_size=4), 0.03)
    assert item.timing is not None
    steps = Steps((0, 1, 2, 3), (), (), 0.0, (), ((1.0, 2.0, 1.0, 2.0), None, (1.1, 2.1, 1.1, 2.1)))
    found = rank_work(replace(item, timing=replace(item.timing, steps=steps)), never)
    assert found is not None and found.what == OWN_WORK and found.group == "stage"
    assert found.alike == (0, 1, 0, 1) and found.times_s[1] == (2.0, 2.1)
    case = make_training_case(replace(work, dp=1, tp=2))
    found = rank_work(replace(item, case=case, timing=replace(item.timing, steps=steps)), never)
    assert found is not None and found.alike == (0, 0, 1, 1), "a stage is on ranks side by side"


def test_stamps_give_the_exchange_from_when_all_are_ready() -> None:
    case = make_training_case(make_training(dp=4), world_size=4)
    item = trained(case, 0.03, {"forward": 0.3, "backward": 0.5, "exchange": 0.1})
    samples = samples_of(steady({2: 1.5}))
    assert rank_work(item, lambda: samples) is None  # no clock shows when ranks begin
    found = rank_work(arrived(item, samples), lambda: samples)
    assert found is not None and found.what == EXCHANGE
    assert np.mean(found.times_s) == pytest.approx(2e-3, rel=0.1)
    assert np.mean(found.ready_s[2]) == pytest.approx(30e-3, rel=0.1)


def test_the_wait_for_a_rank_that_begins_late_is_no_slow_link_of_those_that_wait() -> None:
    case = make_training_case(make_training(dp=2), world_size=2)
    samples = samples_of(steady(ranks=2), skew_ns=np.array([0, 15.0])[:, None] * 1_000_000)
    item = trained(case, 0.03, {"forward": 0.3, "backward": 0.5, "exchange": 0.1})
    found = rank_work(arrived(item, samples), lambda: samples)
    assert found is not None and named(found) == []
    assert np.mean(found.times_s) == pytest.approx(2e-3, rel=0.1)


def test_kinds_that_know_nothing_of_it_are_left_alone() -> None:
    item: CaseResult = ok(make_case(), 1e-3)
    results = make_results((item,))
    found = waits([Run("FILE", results, MemorySamples(results))], TopicOptions())
    assert not found.causes and not found.stalled
    assert found.answers[0].certainty == CANNOT_TELL
    alone = trained(make_training_case(make_training(dp=1), world_size=1), 0.03)
    assert waiting(alone, {}) is None
    assert rank_work(alone, never) is None


def test_it_is_a_topic_that_ends_a_run_only_if_something_was_found() -> None:
    (topic,) = (one for one in topics(of_summary=True) if one.name == "waits")
    assert topic.is_quiet and topic.analysis is waits

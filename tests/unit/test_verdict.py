"""Who is blamed: never the first reporter, always by evidence."""

from __future__ import annotations

import json
import random

from hypothesis import given
from hypothesis import strategies as st

from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome, Verdict, judge


def _seen(rank: int, outcome: RankOutcome, iteration: int = 5, **more: object) -> Evidence:
    return Evidence(rank, outcome, cause=f"{outcome.value} {rank}", iteration=iteration, phase=5,
                    **more)  # type: ignore[arg-type]


def test_all_well_is_ok() -> None:
    assert judge([_seen(0, RankOutcome.OK), _seen(1, RankOutcome.OK)], 1.0).status == "ok"


def test_a_killed_worker_outweighs_the_survivors_errors() -> None:
    verdict = judge([_seen(0, RankOutcome.COMMUNICATION), _seen(1, RankOutcome.COMMUNICATION),
                     _seen(2, RankOutcome.STUCK), _seen(3, RankOutcome.DIED)], 1.0)
    assert (verdict.status, verdict.blamed_rank) == ("failed", 3)
    assert "rank 3: died 3" in verdict.reason


def test_an_own_exception_outweighs_communication_errors() -> None:
    verdict = judge([_seen(0, RankOutcome.COMMUNICATION, 1), _seen(1, RankOutcome.EXCEPTION, 9)],
                    1.0)
    assert (verdict.status, verdict.blamed_rank) == ("failed", 1)


def test_a_stopped_process_is_a_timeout_whatever_the_progress() -> None:
    verdict = judge([_seen(0, RankOutcome.STUCK, 4, expired=True),
                     _seen(1, RankOutcome.STOPPED, 5, expired=True)], 2.5)
    assert (verdict.status, verdict.blamed_rank) == ("timeout", 1)
    assert "2.5 s" in verdict.reason


def test_the_least_progress_is_blamed_for_a_hang() -> None:
    verdict = judge([_seen(0, RankOutcome.STUCK), _seen(1, RankOutcome.STUCK, 4),
                     _seen(2, RankOutcome.STUCK)], 1.0)
    assert (verdict.status, verdict.blamed_rank) == ("timeout", 1)


def test_a_communication_error_that_ended_the_wait_of_others_is_no_timeout() -> None:
    broken = Evidence(2, RankOutcome.COMMUNICATION, "NCCL error: unhandled system error", 5, 5)
    verdict = judge([_seen(0, RankOutcome.STUCK), _seen(1, RankOutcome.STUCK), broken], 60.0)
    assert (verdict.status, verdict.blamed_rank) == ("failed", 2)
    assert "NCCL error" in verdict.reason
    late = [_seen(0, RankOutcome.STUCK, expired=True), _seen(1, RankOutcome.STUCK, 4, expired=True)]
    assert judge([*late, broken], 60.0).status == "timeout"


def test_nobody_is_blamed_when_nobody_is_behind() -> None:
    verdict = judge([_seen(0, RankOutcome.STUCK), _seen(1, RankOutcome.STUCK)], 1.0)
    assert (verdict.status, verdict.blamed_rank) == ("timeout", -1)


def test_a_rank_astray_is_the_cause_of_all_that_follows() -> None:
    wrong = {"wrong_operation": "broadcast", "wrong_iteration": 3, "expired": True}
    stuck = [_seen(0, RankOutcome.STUCK, 3, expired=True), _seen(1, RankOutcome.STUCK, 4, **wrong)]
    verdict = judge(stuck, 2.0, "all_reduce")
    assert (verdict.status, verdict.blamed_rank) == ("timeout", 1)
    assert verdict.reason == ("rank 1 called broadcast in iteration 3 while the other rank called "
                              "all_reduce: no end in 2 s")
    verdict = judge([*stuck, _seen(2, RankOutcome.DIED)], 2.0, "all_reduce")
    assert (verdict.status, verdict.blamed_rank) == ("failed", 1)
    assert verdict.reason.endswith("while the others called all_reduce; then rank 2: died 2")


def test_a_call_astray_that_harmed_nobody_is_still_a_failure() -> None:
    verdict = judge([_seen(0, RankOutcome.OK, wrong_operation="barrier")], 2.0, "all_reduce")
    assert (verdict.status, verdict.blamed_rank) == ("failed", 0)
    assert verdict.reason == "rank 0 called barrier in iteration 0 instead of all_reduce"


def test_an_error_of_all_ranks_is_reported_as_such() -> None:
    same = [Evidence(rank, RankOutcome.EXCEPTION, "ValueError: no") for rank in range(3)]
    assert judge(same, 1.0).reason == "all 3 ranks: ValueError: no"


def test_wrong_elements_are_counted_over_ranks() -> None:
    verdict = judge([_seen(0, RankOutcome.OK, n_wrong=0),
                     _seen(1, RankOutcome.OK, n_wrong=3, wrong="3 of 8 elements"),
                     _seen(2, RankOutcome.OK, n_wrong=1, wrong="1 of 8 elements")], 1.0)
    assert (verdict.status, verdict.blamed_rank) == ("wrong", 1)
    assert verdict.reason == (
        "4 wrong results in all checked calls of ranks 1, 2; rank 1: 3 of 8 elements")


def test_what_one_rank_has_wrong_is_reported_in_its_words_alone() -> None:
    verdict = judge([_seen(0, RankOutcome.OK, n_wrong=0),
                     _seen(1, RankOutcome.OK, n_wrong=1, wrong="the loss is nan")], 1.0)
    assert (verdict.status, verdict.reason) == ("wrong", "rank 1: the loss is nan")


def test_a_stop_request_makes_the_case_not_run() -> None:
    halted = Evidence(1, RankOutcome.HALTED, "stopped by SIGTERM", stop="SIGTERM")
    assert judge([_seen(0, RankOutcome.STUCK), halted], 1.0).status == "not_run"


@given(st.lists(st.sampled_from(RankOutcome), min_size=1, max_size=6), st.randoms())
def test_the_verdict_does_not_depend_on_the_order_of_the_reports(
    outcomes: list[RankOutcome], shuffle: random.Random,
) -> None:
    evidence = [_seen(rank, outcome) for rank, outcome in enumerate(outcomes)]
    shuffled = evidence[:]
    shuffle.shuffle(shuffled)
    first, second = judge(evidence, 1.0), judge(shuffled, 1.0)
    assert (first.status, first.blamed_rank) == (second.status, second.blamed_rank)


@given(st.builds(Evidence, rank=st.integers(0, 9), outcome=st.sampled_from(RankOutcome)))
def test_evidence_survives_json(evidence: Evidence) -> None:
    plain = json.loads(json.dumps(EVIDENCE.dump_python(evidence, mode="json")))
    assert EVIDENCE.validate_python(plain) == evidence


def test_an_interface_that_is_down_outweighs_who_hangs_where() -> None:
    """With the names of hosts; of a rank that was done, it does not count."""
    down = "network interface eth1 is down"
    evidence = [_seen(0, RankOutcome.STUCK, expired=True, host="n1"),
                _seen(1, RankOutcome.STOPPED, expired=True, host="n2"),
                _seen(2, RankOutcome.STUCK, 9, expired=True, host="n3", link=down)]
    verdict = judge(evidence, 5.0)
    assert verdict == Verdict("timeout", f"rank 2 on n3: {down}; no end in 5 s", 2)
    lost = [_seen(0, RankOutcome.COMMUNICATION, host="n1"),
            _seen(1, RankOutcome.COMMUNICATION, host="n2", link=down)]
    assert judge(lost, 5.0) == Verdict("failed", f"rank 1 on n2: {down}", 1)
    killed = [*lost, _seen(2, RankOutcome.DIED, host="n1")]
    assert judge(killed, 5.0).reason == "rank 2 on n1: died 2"
    assert judge([_seen(0, RankOutcome.OK, link=down), _seen(1, RankOutcome.OK)],
                 5.0).status == "ok"


def test_hosts_are_named_in_every_reason() -> None:
    def of(outcome: RankOutcome, **more: object) -> list[Evidence]:
        return [_seen(rank, outcome if rank else RankOutcome.OK, host=f"n{rank}", **more)
                for rank in range(2)]

    for evidence in (of(RankOutcome.DIED), of(RankOutcome.EXCEPTION),
                     of(RankOutcome.STOPPED, expired=True),
                     of(RankOutcome.COMMUNICATION), of(RankOutcome.OK, n_wrong=1)[1:],
                     of(RankOutcome.STUCK, wrong_operation="barrier")):
        assert "rank 1 on n1" in judge(evidence, 2.0, "all_reduce").reason
    assert "rank 1 on n1" in judge([*of(RankOutcome.OK)[:1], _seen(2, RankOutcome.OK), _seen(
        1, RankOutcome.STUCK, expired=True, host="n1")], 2.0).reason


def test_a_skip_is_one_of_all_ranks() -> None:
    skips = [Evidence(rank, RankOutcome.SKIPPED, "6 heads") for rank in range(2)]
    assert judge(skips, 5.0) == Verdict("skipped", "6 heads", -1)
    stuck = Evidence(0, RankOutcome.STUCK, "waits", expired=True)
    alone = judge([stuck, skips[1]], 5.0)
    assert (alone.status, alone.blamed_rank) == ("failed", 1)
    raised = judge([Evidence(0, RankOutcome.EXCEPTION, "ValueError: no"), skips[1]], 5.0)
    assert (raised.status, raised.blamed_rank) == ("failed", 0)

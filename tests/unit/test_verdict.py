"""Who is blamed: never the first reporter, always by evidence."""

from __future__ import annotations

import json
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.launch.verdict import EVIDENCE, Evidence, RankOutcome, judge


def _seen(rank: int, outcome: RankOutcome, iteration: int = 5, **more: object) -> Evidence:
    return Evidence(rank, outcome, cause=f"{outcome.value} {rank}", iteration=iteration, phase=5,
                    **more)  # type: ignore[arg-type]


OK, STUCK, DIED, RAISED, BROKEN, STOPPED = (
    RankOutcome.OK, RankOutcome.STUCK, RankOutcome.DIED, RankOutcome.EXCEPTION,
    RankOutcome.COMMUNICATION, RankOutcome.STOPPED)
ASTRAY = {"wrong_operation": "broadcast", "wrong_iteration": 3, "expired": True}
DOWN = {"link": "network interface eth1 is down", "host": "n3"}
SKIPS = [Evidence(rank, RankOutcome.SKIPPED, "6 heads") for rank in range(2)]
LATE = [_seen(0, STUCK, expired=True), _seen(1, STUCK, 4, expired=True)]
NCCL = Evidence(2, BROKEN, "NCCL error: unhandled system error", 5, 5)
HUNG = [_seen(0, STUCK, 3, expired=True), _seen(1, STUCK, 4, **ASTRAY)]
CUT_OFF = [_seen(0, BROKEN, host="n1"), _seen(1, BROKEN, **DOWN)]


@pytest.mark.parametrize(("evidence", "status", "blamed", "words"), [
    ([_seen(0, OK), _seen(1, OK)], "ok", -1, ""),
    # a death outweighs the survivors' errors, an own exception those of communication
    ([_seen(0, BROKEN), _seen(1, BROKEN), _seen(2, STUCK), _seen(3, DIED)], "failed", 3, "died 3"),
    ([_seen(0, BROKEN, 1), _seen(1, RAISED, 9)], "failed", 1, ""),
    # a process that was stopped is a timeout, else who has got least far; or nobody
    ([_seen(0, STUCK, 4, expired=True), _seen(1, STOPPED, expired=True)], "timeout", 1, "2.5 s"),
    ([_seen(0, STUCK), _seen(1, STUCK, 4), _seen(2, STUCK)], "timeout", 1, ""),
    ([_seen(0, STUCK), _seen(1, STUCK)], "timeout", -1, ""),
    # an error that ended the wait of others is no timeout
    ([_seen(0, STUCK), _seen(1, STUCK), NCCL], "failed", 2, "NCCL error: unhandled system error"),
    ([*LATE, NCCL], "timeout", 1, ""),
    # a rank that called something else is the cause of all that follows, and a failure in any case
    (HUNG, "timeout", 1, "rank 1 called broadcast in iteration 3 while the other rank called "
                         "all_reduce: no end in 2.5 s"),
    ([*HUNG, _seen(2, DIED)], "failed", 1, "called all_reduce; then rank 2: died 2"),
    ([_seen(0, OK, wrong_operation="barrier")], "failed", 0,
     "rank 0 called barrier in iteration 0 instead of all_reduce"),
    ([Evidence(rank, RAISED, "ValueError: no") for rank in range(3)], "failed", 0,
     "all 3 ranks: ValueError: no"),
    # wrong elements are counted over ranks; what one has is in its words alone
    ([_seen(0, OK, n_wrong=0), _seen(1, OK, n_wrong=3, wrong="3 of 8 elements"),
      _seen(2, OK, n_wrong=1, wrong="1 of 8 elements")], "wrong", 1,
     "4 wrong results in all checked calls of ranks 1, 2; rank 1: 3 of 8 elements"),
    ([_seen(0, OK, n_wrong=0), _seen(1, OK, n_wrong=1, wrong="the loss is nan")], "wrong", 1,
     "rank 1: the loss is nan"),
    ([_seen(0, STUCK), Evidence(1, RankOutcome.HALTED, "stopped by SIGTERM", stop="SIGTERM")],
     "not_run", -1, ""),
    # an interface that is down outweighs who hangs where, but no death, and nothing where all is ok
    ([_seen(0, STUCK, expired=True, host="n1"), _seen(1, STOPPED, expired=True, host="n2"),
      _seen(2, STUCK, 9, expired=True, **DOWN)], "timeout", 2,
     "rank 2 on n3: network interface eth1 is down; no end in 2.5 s"),
    (CUT_OFF, "failed", 1, "rank 1 on n3: network interface eth1 is down"),
    ([*CUT_OFF, _seen(2, DIED, host="n1")], "failed", 2, "rank 2 on n1: died 2"),
    ([_seen(0, OK, **DOWN), _seen(1, OK)], "ok", -1, ""),
    # a skip is one of all ranks
    (SKIPS, "skipped", -1, "6 heads"),
    ([Evidence(0, STUCK, "waits", expired=True), SKIPS[1]], "failed", 1, ""),
    ([Evidence(0, RAISED, "ValueError: no"), SKIPS[1]], "failed", 0, ""),
])
def test_who_is_blamed_and_for_what(
    evidence: list[Evidence], status: str, blamed: int, words: str,
) -> None:
    verdict = judge(evidence, 2.5, "all_reduce")
    assert (verdict.status, verdict.blamed_rank) == (status, blamed)
    assert verdict.reason.endswith(words)


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
    plain = json.loads(json.dumps(EVIDENCE.write(evidence)))
    assert EVIDENCE.read(plain) == evidence


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

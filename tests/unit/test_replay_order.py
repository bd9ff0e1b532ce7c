"""Recorded jobs in order: which calls are kept, on which ranks, after which gaps."""

from __future__ import annotations

import json
import random
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.load import load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.replay.derive import ENDS, ReplayDeriver, recorded_s
from hpcbench.kinds.replay.plan import (
    CallSequence,
    Replay,
    ReplayPlanner,
    Request,
    buffer_elements,
    divisions_of,
    memory_bytes,
    most_in_flight,
    sequence_of,
    unequal_order,
    unfit_record,
)
from hpcbench.kinds.replay.present import ReplayPresenter
from hpcbench.operations.traffic import (
    CallGroup,
    RankOrder,
    Signature,
    TrafficRecord,
    traffic_text,
)
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.results import CaseResult, Statistics
from hpcbench.views.columns import UNRELIABLE
from hpcbench.views.table import Range

ALL = 0


def call(collective: str = "all_reduce", n: int = 100, group: int = ALL, **more: Any) -> Signature:
    given = {"elements_in": (n,), "elements_out": (n,), "bytes": 4 * n, **more}
    return Signature(collective, "fp32", None, None, splits_in=given.pop("splits_in", None),
                     splits_out=None, group=group, count=0, backend="gloo", **given)


def job(
    signatures: list[Signature], calls: dict[int, list[tuple[int, int, int | None]]],
    groups: tuple[tuple[int, ...], ...] = (),
) -> TrafficRecord:
    """Return a record; ``calls`` of each rank are signature, sequence and gap in ms."""
    world = max(calls) + 1
    every = ((*range(world),), *groups)
    return TrafficRecord(
        ("test",), ("a",), world, (), tuple(CallGroup(str(n), "", r) for n, r in enumerate(every)),
        tuple(signatures), tuple(RankOrder(
            rank, tuple(one[0] for one in own), tuple(one[1] for one in own),
            tuple(None if one[2] is None else one[2] * 10**6 for one in own),
            (None,) * len(own), (None,) * len(own)) for rank, own in calls.items()))


def sequence(record: TrafficRecord, ranks: int = 2, **more: Any) -> CallSequence:
    return sequence_of(record, replace(Request(ranks, "gloo", "cpu", 1000, "recorded"), **more))


TWICE = [(0, 1, None), (0, 2, 5), (0, 3, 7)]


def test_a_call_that_one_rank_lacks_is_left_out_on_all_with_its_gap_kept() -> None:
    found = sequence(job([call()], {0: TWICE, 1: [(0, 1, None), (0, 3, 30)]}))
    assert (found.n_calls, found.recorded_calls, found.size_bytes) == (2, 3, 800)
    assert [one.gap_ns for one in found.ranks] == [(0, 12_000_000), (0, 30_000_000)]
    assert found.recorded_ns == 30_000_000
    assert [*found.left_out.values()] == [1]


def test_gaps_of_each_rank_the_shortest_or_none() -> None:
    record = job([call()], {0: TWICE, 1: [(0, 1, None), (0, 2, 6), (0, 3, 1)]})
    waits = {gaps: [[gap // 10**6 for gap in one.gap_ns] for one in sequence(
        record, gaps=gaps).ranks] for gaps in ("recorded", "together", "none")}
    assert waits == {"recorded": [[0, 5, 7], [0, 6, 1]], "together": [[0, 5, 1]] * 2,
                     "none": [[0, 0, 0]] * 2}
    lost = job([call()], {0: TWICE, 1: [(0, 1, None), (0, 2, None), (0, 3, 1)]})
    assert sequence(lost).recorded_ns is None
    assert [one.gap_ns[1] for one in sequence(lost).ranks] == [5_000_000, 0]


def test_ranks_that_come_together_have_not_waited_for_a_late_one() -> None:
    """Rank 1 waits 20 ms for rank 0 in the first call; in the second it goes on meanwhile."""
    record = job([call()], {0: [(0, 1, None), (0, 2, 25), (0, 3, 4)],
                            1: [(0, 1, None), (0, 2, 25), (0, 3, 4)]})
    waits = (20_000_000, 20_000_000, None)
    late = replace(record, order=(record.order[0], replace(record.order[1], wait_ns=waits)))
    assert [one.gap_ns for one in sequence(late, gaps="together").ranks] == [
        (0, 5_000_000, 4_000_000)] * 2
    assert sequence(late).recorded_ns == 29_000_000


def test_the_first_calls_only() -> None:
    found = sequence(job([call()], {0: TWICE, 1: TWICE}), calls=2)
    assert found.n_calls == 2 and [*found.left_out.values()] == [1]
    assert found.recorded_ns == 5_000_000


def test_on_fewer_ranks_a_group_of_all_is_all_and_others_must_fit() -> None:
    forms = [call(), call("all_gather", 100, bytes=1600), call(group=1), call(group=2),
             call("broadcast"), call("all_gather", 9, elements_in=(1, 2, 3, 4))]
    forms[4] = replace(forms[4], root=3)
    own = [(0, 1, None), (1, 2, 1), (4, 3, 1), (5, 4, 1)]
    record = job(forms, {rank: [*own, (2 if rank < 2 else 3, 1, 1)] for rank in range(4)},
                 ((0, 1), (2, 3)))
    assert sequence(record, 4).n_calls == 5  # gloo gathers no parts of different sizes
    found = sequence(record, 2)
    assert [(one.collective, one.ranks, one.parts) for one in found.forms] == [
        ("all_reduce", (0, 1), (100,)), ("all_gather", (0, 1), (200, 200)),
        ("all_reduce", (0, 1), (100,))]
    assert (found.n_calls, found.recorded_calls, sum(found.left_out.values())) == (3, 5, 2)
    assert [lines for _, lines in divisions_of(found, 2)] == [[(0, 1)], [(0, 1)]]
    together = divisions_of(sequence(record, 4), 4)
    assert [lines for _, lines in together] == [[(0, 1, 2, 3)], [(0, 1), (2, 3)]]
    assert unfit_record(record, 5) and unfit_record(record, 4) is None
    missing = replace(record, order=record.order[:3])
    assert unfit_record(missing, 4) and unfit_record(missing, 3) is None


def test_uneven_parts_and_messages() -> None:
    rows = ((1, 5), (7, 2))
    forms = [call("all_to_all", 9, elements_in=(6, 9), elements_out=(8, 7), splits_in=rows),
             call("send_recv", 50, pair=(1, 0)), call("all_to_all", 9, elements_in=(6, 9)),
             call("reduce_scatter", 9, elements_in=(9,), elements_out=(4, 5))]
    own = [(0, 1, None), (1, 1, 1), (2, 2, 1), (3, 3, 1)]
    found = sequence(job(forms, {0: own, 1: own}))
    uneven, message, scattered = found.forms
    assert [uneven.elements(rank) for rank in (0, 1)] == [(6, 8), (9, 7)]
    assert message.callers == (1, 0)
    assert [message.elements(rank) for rank in (0, 1)] == [(0, 50), (50, 0)]
    assert [scattered.elements(rank) for rank in (0, 1)] == [(9, 4), (9, 5)]
    assert [*found.left_out.values()] == [1]
    assert buffer_elements(found) == {"fp32": (50, 50)}
    assert memory_bytes(found, checked=False) == 4 * 100
    assert memory_bytes(found, checked=True) == 4 * 250
    on_nccl = sequence(job(forms, {0: own, 1: own}), backend="nccl", device="cuda")
    assert [one.collective for one in on_nccl.forms] == ["all_to_all", "reduce_scatter"]


def test_in_flight_are_as_many_as_no_rank_waits_without_end_for() -> None:
    """Two groups of the same ranks, which call all of one before all of the other."""
    forms, n = [call(group=1), call(group=2)], 300
    one, other = [(0, i, 0) for i in range(n)], [(1, i, 0) for i in range(n)]
    groups = ((0, 1), (0, 1))
    assert most_in_flight(sequence(job(forms, {0: one + other, 1: one + other}, groups))) == 64
    assert most_in_flight(sequence(job(forms, {0: one + other, 1: other + one}, groups))) >= n
    crossed = job([call(n=1), call(n=2)], {0: [(0, 1, 0), (1, 2, 0)], 1: [(1, 2, 0), (0, 1, 0)]})
    assert unequal_order(sequence(crossed)) is not None
    assert unequal_order(sequence(job([call()], {0: TWICE, 1: TWICE}))) is None


@pytest.mark.parametrize("seed", range(20))
def test_whatever_is_lost_all_ranks_of_a_call_issue_it(seed: int) -> None:
    numbers = random.Random(seed)
    groups = ((0, 1, 2, 3), (0, 1), (2, 3), (0, 2), (1, 3))
    issued = [(numbers.randrange(5), number) for number in range(60)]
    record = job([call(group=group) for group in range(5)], {rank: [
        (*one, 1) for one in issued if rank in groups[one[0]] and numbers.random() > 0.1]
        for rank in range(4)}, groups[1:])
    ranks = numbers.choice((2, 3, 4))
    found = sequence(record, ranks, calls=numbers.choice((10, 1000)))
    counts = [Counter(one.forms) for one in found.ranks]
    for index, form in enumerate(found.forms):
        have = {rank for rank in range(ranks) if counts[rank][index]}
        assert have == {*form.callers} and len({counts[rank][index] for rank in have}) == 1
    assert unequal_order(found) is None
    assert found.n_calls + sum(found.left_out.values()) == found.recorded_calls


def test_a_group_that_torch_would_sort_is_left_out() -> None:
    own = [(0, 1, None), (1, 1, 1)]
    found = sequence(job([call(), call(group=1)], {0: own, 1: own}, ((1, 0),)))
    assert [one.ranks for one in found.forms] == [(0, 1)] and found.n_calls == 1
    assert [*found.left_out.values()] == [1]


def sweep(folder: Path, record: TrafficRecord, **more: Any) -> Path:
    (folder / "traffic.json").write_text(traffic_text(record))
    path = folder / "order.json"
    path.write_text(json.dumps({"benchmarks": [
        {"kind": "replay", "traffic": "traffic.json", **more}]}))
    return path


def test_a_block_is_a_case_for_each_gap_and_backend(tmp_path: Path) -> None:
    record = job([call()], {0: TWICE, 1: TWICE})
    path = sweep(tmp_path, record, gaps=["recorded", "together", "none"], backend=["gloo", "mpi"])
    cases = make_plan(load_config(path), 2).cases
    assert len({case.case_id for case in cases}) == 6
    ready = [case for case in cases if case.skip is None]
    assert [(case.backend, case.memory_bytes) for case in ready] == [("gloo", 4 * 300)] * 3
    work = ready[0].workload
    assert isinstance(work, Replay)
    assert (work.n_calls, work.size_bytes, work.recorded_ns) == (3, 1200, 12_000_000)
    assert recorded_s(work) == 0.012
    assert ReplayPlanner().workload_from_json(json.loads(json.dumps(work.to_json()))) == work
    assert all(case.skip for case in make_plan(load_config(path), 3).cases)
    changed = sweep(tmp_path, job([call(n=7)], {0: TWICE, 1: TWICE}))
    assert make_plan(load_config(changed), 2).cases[0].case_id not in {
        case.case_id for case in cases}


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    path = sweep(tmp_path, job([call()], {0: TWICE, 1: TWICE}), dtype="fp16")
    with pytest.raises(ConfigError, match="dtype"):
        make_plan(load_config(path), 2)
    for content in (None, "{}"):
        path = sweep(tmp_path, job([call()], {0: TWICE, 1: TWICE}))
        (tmp_path / "traffic.json").unlink()
        if content:
            (tmp_path / "traffic.json").write_text(content)
        with pytest.raises(ConfigError) as raised:
            make_plan(load_config(path), 2)
        assert "traffic.json" in str(raised.value) and "\n" not in str(raised.value)


@pytest.mark.parametrize("reliable", [False, True])
def test_the_ratio_has_an_interval_where_the_time_has_one(tmp_path: Path, reliable: bool) -> None:
    """The record took 12 ms."""
    case = make_plan(load_config(sweep(tmp_path, job([call()], {0: TWICE, 1: TWICE}))), 2).cases[0]
    item = CaseResult(case, "ok", "", None, "cpu", 0, Statistics(
        6, 12e-3, None, 12e-3, 12e-3, 12e-3, None, None, 24e-3, 12e-3, 24e-3, reliable), {})
    derived = ReplayDeriver().derive([item], {})
    assert [derived[case.case_id][one.name] for one in ENDS] == [1.0, 2.0]
    (table,) = ReplayPresenter().tables("", [item], derived)
    cells = dict(zip([column.name for column in table.columns], table.groups[0].rows[0].cells,
                     strict=True))
    assert (cells["interval"], cells["ratio_interval"]) == (
        (Range(12e-3, 24e-3), Range(1.0, 2.0)) if reliable else (UNRELIABLE, UNRELIABLE))

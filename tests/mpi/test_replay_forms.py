"""A record with every form of call, replayed in order: each is issued; its check finds faults."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from reading import NOT_DRAWN, ONCE, Outcome, read

from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.interop.answers.causes import causes
from hpcbench.operations.traffic import (
    CallGroup,
    RankOrder,
    Signature,
    TrafficRecord,
    traffic_text,
)
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.results_file import open_results
from launcher import launcher_for

pytestmark = pytest.mark.mpi
ROWS = ((1, 2), (3, 4))
LATE_NS = 20_000_000


def form(collective: str, size: int, n_in: tuple[int, ...], n_out: tuple[int, ...], **more: object
         ) -> Signature:
    values = {"dtype": "fp32", "operator": None, "root": None, "splits_in": None,
              "splits_out": None, "group": 0, "count": 20, "backend": "gloo"}
    return Signature(**{  # type: ignore[arg-type]
        **values, "collective": collective, "bytes": size, "elements_in": n_in,
        "elements_out": n_out, **more})


FORMS = (
    form("all_reduce", 400, (100,), (100,), operator="max"),
    form("broadcast", 400, (100,), (100,), root=1, dtype="fp16"),
    form("reduce", 400, (100,), (100,), root=1, operator="sum"),
    form("all_gather", 800, (100,), (200,)),
    form("reduce_scatter", 800, (200,), (100,)),
    form("reduce_scatter", 12, (3,), (1, 2)),
    form("all_to_all", 800, (200,), (200,), group=1),
    form("all_to_all", 40, (3, 7), (4, 6), splits_in=ROWS),
    form("gather", 800, (100,), (200,), root=1),
    form("scatter", 800, (200,), (100,), root=0),
    form("barrier", 0, (0,), (0,), dtype=None),
    form("send_recv", 400, (100,), (100,), pair=(1, 0)),
    form("send_recv", 400, (100,), (100,), pair=(0, 1)))


UNEVEN, TO_RIGHT = 7, 12


def every_form() -> TrafficRecord:
    """Return a job that calls each form 20 times, without a gap."""
    calls = [(index, turn * len(FORMS) + index)
             for turn in range(20) for index in range(len(FORMS))]
    none = (None,) * len(calls)
    return TrafficRecord(("test",), (), 2, (), (
        CallGroup("0", "", (0, 1)), CallGroup("1", "", (0, 1))), FORMS, tuple(
        RankOrder(rank, tuple(index for index, _ in calls), tuple(number for _, number in calls),
                  (None, *(0,) * (len(calls) - 1)), none, none) for rank in (0, 1)))


def late_in_turn() -> TrafficRecord:
    """Return 20 calls, before each of which another rank takes 20 ms."""
    none, numbers = (None,) * 20, range(20)
    return TrafficRecord(("test",), (), 2, (), (CallGroup("0", "", (0, 1)),), FORMS[:1], tuple(
        RankOrder(rank, (0,) * 20, tuple(numbers), (None, *(
            LATE_NS * (number % 2 == rank) for number in numbers[1:])), none, none)
        for rank in (0, 1)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    home = tmp_path_factory.mktemp("replay")
    mpirun = launcher_for("mpich", home)
    (home / "every.json").write_text(traffic_text(every_form()))
    (home / "late.json").write_text(traffic_text(late_in_turn()))
    block = {"kind": "replay", "traffic": str(home / "every.json")}
    job = mpirun.run(2, timeout=100, config={
        "measure": {**ONCE, "warmup": 1, "iterations": 6, "validate": True},
        "launch": {"timeout_s": 30}, "output": NOT_DRAWN,
        "fault": [{"case": "replay * calls=26 *", "rank": 1, "kind": "wrong"}],
        "benchmarks": [
            {**block, "name": "every"}, {**block, "name": "spoilt", "calls": 26},
            {"kind": "replay", "name": "late", "traffic": str(home / "late.json"),
             "gaps": ["recorded", "together"]},
            {**block, "name": "alone", "signature": [UNEVEN, TO_RIGHT]}]}).check(1)
    assert job.folder is not None
    yield job.folder
    mpirun.assert_no_orphans()


@pytest.fixture(scope="module")
def outcome(folder: Path) -> Outcome:
    return read(folder)


def of(outcome: Outcome, block: str) -> list[CaseResult]:
    return [item for item in outcome.results.cases if item.case.block == block]


def test_every_form_of_call_is_issued_and_right(outcome: Outcome) -> None:
    item, = of(outcome, "every")
    work = item.case.workload
    assert (item.status, item.n_wrong, work.n_calls, work.left_out) == (
        "ok", 0, 20 * len(FORMS), ())
    assert work.size_bytes == 20 * sum(one.bytes for one in FORMS)


def test_a_form_of_call_is_issued_alone_and_compared_with_recorded_ones(
    outcome: Outcome, folder: Path,
) -> None:
    """Calls that were recorded with a second each took almost all of it beyond the isolated ones.
    """
    uneven, message = of(outcome, "alone")
    assert [(one.status, one.n_wrong, one.case.workload.n_calls, one.case.workload.callers)
            for one in (uneven, message)] == [("ok", 0, 1, (0, 1)), ("ok", 0, 1, (0, 1))]
    assert uneven.statistics is not None and 0 < uneven.statistics.median_s < 0.5
    record = every_form()
    taken = tuple(replace(one, duration_ns=(10**9,) * len(one.signature)) for one in record.order)
    with open_results(folder) as file:
        found = causes([Run("alone", file.results, file)],
                       TopicOptions(traffic=replace(record, order=taken)))
    by_form = {one.signature: one for one in found.forms}
    assert {by_form[index].cause for index in (UNEVEN, TO_RIGHT)} == {"contention"}
    assert by_form[0].missing


def test_a_wrong_result_is_found(outcome: Outcome) -> None:
    item, = of(outcome, "spoilt")
    assert (item.status, item.case.workload.n_calls) == ("wrong", 26) and item.n_wrong


def test_each_ranks_own_gaps_make_it_late_again(outcome: Outcome) -> None:
    recorded, together = (item.statistics.median_s for item in of(outcome, "late")
                          if item.statistics)
    assert recorded > 9 * LATE_NS / 1e9 > 2 * together

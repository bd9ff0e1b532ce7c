"""Runs of several attempts: what is known of the earlier ones, and what comes of all of them."""

from __future__ import annotations

import fcntl
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.errors import ExitCode, FileError, UsageError
from hpcbench.launch.attempt import HISTORY, RunAttempt
from hpcbench.launch.probe import Resolution
from hpcbench.launch.run_folder import RankFolders, RunFolder, SeparateFolder
from hpcbench.plan.case import STATUSES, status_of_case, status_of_run
from hpcbench.plan.order import History, RunKey, Turn
from hpcbench.reduce.fold import RankClocks
from hpcbench.reduce.history import (
    is_fresh,
    is_worth_going_on,
    main,
    read_history,
    versions_before,
)
from hpcbench.reduce.outcome import Attempt, OutcomeContext, judge
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.run import what_is_there
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.container import attempt_folder, attempt_folders
from hpcbench.trace.journal import Journal, is_being_written, journal_path
from hpcbench.trace.schema import Record, no_samples
from hpcbench.trace.sealed import trace_path
from synthetic import (
    BASE_NS,
    make_header,
    make_plan,
    make_record,
    seen_by,
    sync_note,
    write_synthetic_rank,
    write_synthetic_run,
)

PLAN = make_plan(n_cases=4, world_size=2, passes=2, iterations=20)
IDS = [case.case_id for case in PLAN.cases]


def key(number: int, pass_index: int = 0) -> RunKey:
    return RunKey(IDS[number], 0, pass_index)


def only_these(*kept: RunKey, attempt: int = 0) -> Any:
    def change(rank: int, record: Record) -> Iterable[Record]:
        if RunKey(record.case_id, record.launch, record.pass_index) in kept:
            yield replace(record, attempt=attempt)
    return change


def begins(*keys: RunKey) -> Any:
    return lambda rank: [("begin", item._asdict()) for item in keys] if rank == 0 else []


def write_attempt(folder: Path, attempt: int, **options: Any) -> None:
    traces = attempt_folder(folder / "traces", attempt)
    traces.mkdir()
    for rank in range(PLAN.world_size):
        write_synthetic_rank(traces, PLAN, make_header(PLAN, rank), rank=rank, **options)


EARLIER = (key(0), key(1), key(2))
LATER = (key(3), *(key(number, 1) for number in range(4)))


def timed(keys: Iterable[RunKey]) -> float:
    """Return the seconds from the begin of the first of these runs on rank 0 to their last end."""
    records = [make_record(PLAN.cases[IDS.index(key.case_id)], 0) for key in keys]
    return (records[-1].end_ns - records[0].begin_ns) / 1e9


@pytest.fixture
def killed(tmp_path: Path) -> Path:
    """A run whose job was killed while it ran the fourth case for the first time."""
    write_synthetic_run(tmp_path / "run", PLAN, change=only_these(*EARLIER), end=False,
                        sealed=False, notes=begins(*EARLIER, key(3)))
    return tmp_path / "run"


def resumed_note(**changes: Any) -> Any:
    data = {"attempt": 1, "left": 5, "planned": 8, "changes": [], "earlier_plans": [], **changes}
    return lambda rank: [("resumed", data)] if rank == 0 else []


def test_hb150_a_resumed_run_is_whole(killed: Path) -> None:
    write_attempt(killed, 1, change=only_these(*LATER, attempt=1), notes=resumed_note())
    results = reduce_folder(killed)
    assert exit_code(results) is ExitCode.OK
    (finding,) = [item for item in results.findings if item.code == "HB150"]
    assert "attempt 1 was ended from outside (rank 0-1), 5 of 8 runs" in finding.message
    assert f"while {PLAN.cases[3].label} ran" in finding.message
    assert not {"HB110", "HB112", "HB139", "HB141"} & {item.code for item in results.findings}
    assert [item.statistics and item.statistics.n for item in results.cases] == [40] * 4


def test_hb150_a_run_that_ended_twice_is_not_whole(killed: Path) -> None:
    write_attempt(killed, 1, change=only_these(key(3), attempt=1), end=False, sealed=False)
    results = reduce_folder(killed)
    assert exit_code(results) is ExitCode.INCOMPLETE
    assert {"HB110", "HB141", "HB150"} <= {item.code for item in results.findings}


def test_hb151_what_was_forced_is_reported(killed: Path) -> None:
    write_attempt(killed, 1, change=only_these(*LATER, attempt=1), notes=resumed_note(
        changes=["torch was 2.0, now it is 2.1"]))
    (finding,) = [item for item in reduce_folder(killed).findings if item.code == "HB151"]
    assert "torch was 2.0, now it is 2.1" in finding.message


def test_hb151_an_earlier_plan_is_used_only_if_a_later_attempt_names_it(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    write_synthetic_run(folder, PLAN, change=only_these(*EARLIER), end=False,
                        headers=lambda header: replace(header, plan_hash="fedcba9876543210"))
    write_attempt(folder, 1, change=only_these(*LATER, attempt=1), notes=resumed_note())
    assert "HB106" in {item.code for item in reduce_folder(folder).findings}
    for path in attempt_folder(folder / "traces", 1).iterdir():
        path.unlink()
    attempt_folder(folder / "traces", 1).rmdir()
    write_attempt(folder, 1, change=only_these(*LATER, attempt=1), notes=resumed_note(
        earlier_plans=["fedcba9876543210"], changes=["the plan"]))
    results = reduce_folder(folder)
    assert exit_code(results) is ExitCode.OK, results.findings


def test_history_has_what_all_ranks_recorded(killed: Path) -> None:
    history = read_history(killed, PLAN)
    assert history.finished == set(EARLIER) and history.attempt == 1 and history.run_id == "run-1"
    assert history.deaths == {IDS[3]: 1}
    took_s = timed(EARLIER)
    assert history.pace == pytest.approx(took_s / sum(case.estimate_s for case in PLAN.cases[:3]))
    assert history.left(PLAN.cases, Turn(0, 0, 0)) == [PLAN.cases[3]]
    assert history.quarantine(PLAN.cases[3]) is None
    assert versions_before(killed) == {"hpcbench": "0.1", "torch": "2.0"}


def test_the_software_before_is_that_of_rank_0_by_its_header(tmp_path: Path) -> None:
    """Not by the name of its file, which a copy may have changed."""
    folder = tmp_path / "run"
    traces = write_synthetic_run(folder, PLAN, headers=lambda header: replace(
        header, versions={"torch": f"2.{header.rank}"}))
    first, second = trace_path(traces, 0), trace_path(traces, 1)
    aside = first.rename(first.with_suffix(".aside"))
    second.rename(first)
    aside.rename(second)
    assert versions_before(folder) == {"torch": "2.0"}


def test_history_lacks_what_one_rank_did_not_record(tmp_path: Path) -> None:
    def change(rank: int, record: Record) -> Iterable[Record]:
        if rank == 0 or record.case_id != IDS[1]:
            yield record

    write_synthetic_run(tmp_path / "run", PLAN, change=change, end=False)
    left = {RunKey(case.case_id, 0, turn) for turn in range(2) for case in PLAN.cases} - set(
        read_history(tmp_path / "run", PLAN).finished)
    assert left == {key(1), key(1, 1)}


def test_ranks_of_different_attempts_do_not_make_one_record(killed: Path) -> None:
    for attempt, member in ((1, 0), (2, 1)):
        def change(rank: int, record: Record, member: int = member) -> Iterable[Record]:
            if rank == member and RunKey(record.case_id, 0, record.pass_index) == key(3):
                yield record

        write_attempt(killed, attempt, change=change, end=False)
    assert key(3) not in read_history(killed, PLAN).finished


def test_a_case_that_two_attempts_died_in_is_quarantined(killed: Path) -> None:
    write_attempt(killed, 1, change=only_these(), end=False, notes=begins(key(3)))
    history = read_history(killed, PLAN)
    assert history.deaths == {IDS[3]: 2} and history.attempt == 2
    assert "quarantined: 2 attempts" in str(history.quarantine(PLAN.cases[3]))


def test_a_case_that_was_ok_before_is_not_blamed_for_two_ends_of_the_job(killed: Path) -> None:
    """Reduce calls it ok by the pass on disk, and a resumed run must not call it failed."""
    for attempt in (1, 2):
        write_attempt(killed, attempt, change=only_these(*LATER[:1], attempt=attempt), end=False,
                      notes=begins(*LATER[:1], key(0, 1)))
    assert statuses(killed)[0] == "ok"
    history = read_history(killed, PLAN)
    assert history.quarantine(PLAN.cases[0]) is None
    assert history.left(PLAN.cases, Turn(0, 1, 1)) == [*PLAN.cases]
    assert history.statuses == {case_id: ("ok",) for case_id in IDS}


@pytest.mark.parametrize(("status", "blamed"), [
    ("ok", False), ("wrong", False), ("skipped", False), ("not_run", False), ("timeout", True)])
def test_a_case_that_rank_0_recorded_was_not_running_when_the_job_ended(
    killed: Path, status: str, blamed: bool,
) -> None:
    """A timeout of backend mpi ends the job, and a rank that hangs records nothing."""
    def change(rank: int, record: Record) -> Iterable[Record]:
        for kept in only_these(key(3), attempt=1)(rank, record) if rank == 0 else ():
            yield replace(kept, status=status, samples=no_samples())

    write_attempt(killed, 1, change=change, end=False, notes=begins(key(3)))
    assert read_history(killed, PLAN).deaths == {IDS[3]: 1 + blamed}


@pytest.mark.parametrize("end", [True, False])
def test_a_case_is_not_blamed_for_a_stop_or_for_what_came_behind_it(
    tmp_path: Path, end: bool,
) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, change=only_these(*EARLIER), end=end,
                        notes=begins(*EARLIER, *([key(3)] if end else [])))
    assert read_history(tmp_path / "run", PLAN).deaths == {}


def test_history_survives_its_journey() -> None:
    history = History(3, frozenset(EARLIER), frozenset({"a"}), {"b": 2}, "r", ("p",), ("c",))
    assert HISTORY.read(HISTORY.write(history)) == history


def test_hb150_an_attempt_without_traces_costs_nothing(killed: Path) -> None:
    attempt_folder(killed / "traces", 1).mkdir()
    write_attempt(killed, 2, change=only_these(*LATER, attempt=2), notes=resumed_note())
    results = reduce_folder(killed)
    assert exit_code(results) is ExitCode.OK, results.findings
    assert "attempt 2 left no usable trace" in str(results.findings)


@pytest.mark.parametrize("left", [
    pytest.param(lambda path: path.write_bytes(b""), id="an empty journal, as of a full disk"),
    pytest.param(lambda path: path.unlink(), id="no journal")])
def test_a_lost_trace_that_no_case_needs_is_no_error(tmp_path: Path, left: Any) -> None:
    """The exit code follows the statuses: all was measured in the next attempt."""
    folder = tmp_path / "run"
    traces = write_synthetic_run(folder, PLAN, change=only_these(), end=False, sealed=False)
    left(journal_path(traces, 0))
    write_attempt(folder, 1, change=only_these(*EARLIER, *LATER, attempt=1), notes=resumed_note())
    results = reduce_folder(folder)
    assert [item.status for item in results.cases] == ["ok"] * 4
    assert exit_code(results) is ExitCode.OK, results.findings
    assert {item.scope for item in results.findings} == {"note"}


def test_a_lost_trace_beside_cases_that_were_not_run_is_incomplete(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    traces = write_synthetic_run(folder, PLAN, change=only_these(), end=False, sealed=False)
    journal_path(traces, 0).write_bytes(b"")
    write_attempt(folder, 1, change=only_these(*EARLIER, attempt=1), notes=resumed_note())
    results = reduce_folder(folder)
    assert [item.status for item in results.cases] == ["ok"] * 3 + ["not_run"]
    assert exit_code(results) is ExitCode.INCOMPLETE, results.findings


def test_hb101_a_lost_trace_of_an_earlier_attempt_fails_the_cases_that_it_alone_had(
    killed: Path,
) -> None:
    journal = journal_path(killed / "traces", 1)
    write_attempt(killed, 1, change=only_these(*LATER, attempt=1), notes=resumed_note())
    journal.rename(killed / "aside")
    results = reduce_folder(killed)
    assert [item.status for item in results.cases] == ["failed"] * 3 + ["ok"]
    assert exit_code(results) is ExitCode.INCOMPLETE
    journal.write_bytes(b"")
    assert exit_code(reduce_folder(killed)) is ExitCode.FINDINGS


def failed(number: int) -> Any:
    """Every run of all cases; those of this case failed."""
    def change(rank: int, record: Record) -> Iterable[Record]:
        if record.case_id == IDS[number]:
            record = replace(record, status="failed", reason="broken", samples=no_samples())
        yield record
    return change


def statuses(folder: Path) -> list[str]:
    return [item.status for item in reduce_folder(folder).cases]


def test_what_is_retried_is_left_in_all_passes_and_the_newest_attempt_holds(
    tmp_path: Path,
) -> None:
    folder = tmp_path / "run"
    write_synthetic_run(folder, PLAN, change=failed(1))
    assert statuses(folder) == ["ok", "failed", "ok", "ok"]
    history = read_history(folder, PLAN)
    assert not history.left(PLAN.cases, Turn(0, 0, 0))
    again = history.retrying([IDS[1]])
    assert [again.left(PLAN.cases, Turn(0, 0, index)) for index in range(2)] == [
        [PLAN.cases[1]]] * 2
    write_attempt(folder, 1, change=only_these(key(1), key(1, 1), attempt=1),
                  notes=resumed_note())
    assert statuses(folder) == ["ok"] * 4


@pytest.mark.parametrize("cut", ["a rank has no record", "a rank did not run it"])
def test_a_retry_that_was_cut_short_replaces_nothing(tmp_path: Path, cut: str) -> None:
    folder = tmp_path / "run"
    write_synthetic_run(folder, PLAN, change=failed(1))

    def change(rank: int, record: Record) -> Iterable[Record]:
        if RunKey(record.case_id, 0, record.pass_index) == key(1):
            if cut == "a rank did not run it":
                yield replace(record, attempt=1, status="not_run", samples=no_samples())
            elif rank == 0:
                yield replace(record, attempt=1)

    write_attempt(folder, 1, change=change, end=False, notes=resumed_note())
    assert statuses(folder) == ["ok", "failed", "ok", "ok"]
    assert not read_history(folder, PLAN).left(PLAN.cases, Turn(0, 0, 0))


def test_a_case_in_quarantine_can_be_retried(killed: Path) -> None:
    write_attempt(killed, 1, change=only_these(), end=False, notes=begins(key(3)))
    history = read_history(killed, PLAN)
    assert history.quarantine(PLAN.cases[3])
    assert history.retrying([IDS[3]]).quarantine(PLAN.cases[3]) is None


@pytest.mark.parametrize(("lost", "said"), [
    ("nothing", "All cases were recorded. "), ("a stop", "Without a record: 1 run of cases. "),
    ("an earlier trace", "Without a record: 3 runs of cases. "),
    ("a trace", "The records of rank 1 cannot be read back whole"),
    ("a disk of its own", "Rank 1 wrote to a disk of its own"), ("the folder", "was moved or")])
def test_what_is_said_to_be_recorded_after_the_last_case_is_read_back(
    killed: Path, lost: str, said: str,
) -> None:
    write_attempt(killed, 1, change=only_these(
        *LATER[lost == "a stop":], attempt=1), notes=resumed_note())
    if lost in ("a trace", "an earlier trace"):
        (trace_path(attempt_folder(killed / "traces", 1), 1) if lost == "a trace"
         else journal_path(killed / "traces", 1)).write_bytes(b"")
    folder = RunFolder(killed / ("moved" if lost == "the folder" else ""), "run-1", 1)
    apart = {1: SeparateFolder("n1", "/there")} if lost == "a disk of its own" else {}
    attempt: Any = RunAttempt(
        PLAN, History(), killed, SimpleNamespace(rank=0, size=2),  # type: ignore[arg-type]
        None, None, Resolution(dict.fromkeys(IDS, "cpu"), {}))  # type: ignore[arg-type]
    assert said in what_is_there(RankFolders(folder, folder, apart), attempt)


def test_an_attempt_that_never_ended_is_ended_by_another(killed: Path, tmp_path: Path) -> None:
    assert not read_history(killed, PLAN).ended
    write_attempt(killed, 1, change=only_these(*LATER, attempt=1), notes=resumed_note())
    assert read_history(killed, PLAN).ended


def test_a_job_goes_back_into_the_queue_if_it_got_further_and_something_is_left(
    killed: Path,
) -> None:
    assert is_worth_going_on(killed)
    write_attempt(killed, 1, change=only_these(), notes=resumed_note())
    assert not is_worth_going_on(killed)
    write_attempt(killed, 2, change=only_these(*LATER[:2], attempt=2), notes=resumed_note())
    assert is_worth_going_on(killed)
    write_attempt(killed, 3, change=only_these(*LATER[2:], attempt=3), notes=resumed_note())
    assert not is_worth_going_on(killed)
    assert main([str(killed)]) == 1 and main([]) == 1 and main([str(killed / "none")]) == 1


@given(st.lists(st.lists(st.sampled_from(STATUSES), min_size=2, max_size=2), min_size=1,
                max_size=4))
def test_the_reducer_and_the_line_of_a_case_agree_for_all_statuses_of_ranks_and_passes(
    passes: list[list[str]],
) -> None:
    """The reducer may only reject more: where ranks contradict one another."""
    case, clocks = PLAN.cases[0], RankClocks({0: 0, 1: 1}, {}, frozenset())
    attempt = Attempt(frozenset({0, 1}), frozenset(), clocks, {0: "a", 1: "b"})
    records = {rank: [make_record(
        case, rank, number, status=of_ranks[rank],
        **({} if of_ranks[rank] == "ok" else {"samples": no_samples()}))
        for number, of_ranks in enumerate(passes)] for rank in range(2)}
    result = judge(case, records, OutcomeContext(1, len(passes), (attempt,), {}, 0.0)).result
    said = status_of_case(map(status_of_run, passes))
    contradict = any(len(set(of_ranks)) > 1 for of_ranks in passes)
    assert result.status == said or (contradict and (said, result.status) == ("ok", "failed"))


@given(st.sets(st.sampled_from([*EARLIER, *LATER])))
def test_every_run_is_either_finished_or_left(finished: set[RunKey]) -> None:
    history = History(1, frozenset(finished))
    left = {RunKey(case.case_id, 0, number) for number in range(2)
            for case in history.left(PLAN.cases, Turn(0, number, number))}
    assert left | finished == {*EARLIER, *LATER} and not left & finished


def test_clocks_of_each_attempt_are_its_own(tmp_path: Path) -> None:
    """The second attempt ran on other machines, whose clocks are ages apart from the first's."""
    models = {rank: ClockModel(BASE_NS, 0.0, offset_ns, 100.0, 0.0, 3.0, rank - 1, 50, 50)
              for rank, offset_ns in enumerate((0, 7 * 10**12))}
    folder = tmp_path / "run"
    write_synthetic_run(folder, PLAN, change=only_these(*EARLIER), end=False)
    traces = attempt_folder(folder / "traces", 1)
    traces.mkdir()
    for rank, model in models.items():
        def change(rank: int, record: Record, model: ClockModel = model) -> Iterable[Record]:
            for kept in only_these(*LATER, attempt=1)(rank, record):
                yield seen_by(model, kept)

        header = replace(make_header(PLAN, rank), node=f"other{rank}", hostname=f"other{rank}")
        write_synthetic_rank(
            traces, PLAN, header, rank=rank, change=change,
            notes=lambda rank, model=model: [sync_note(model, f"other{rank}")])
    results = reduce_folder(folder)
    assert [item.status for item in results.cases] == ["ok"] * 4, results.findings


def test_only_folders_of_runs_are_gone_on_in(killed: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "thesis.tex").touch()
    assert is_fresh(tmp_path / "new") and is_fresh(tmp_path / "empty") and not is_fresh(killed)
    with pytest.raises(FileError, match="no results folder"):
        is_fresh(tmp_path / "other")
    with pytest.raises(FileError, match="no folder"):
        is_fresh(tmp_path / "other" / "thesis.tex")


def test_a_job_that_still_runs_is_left_alone(killed: Path) -> None:
    path = journal_path(killed / "traces", 1)
    with path.open("ab") as journal:
        fcntl.flock(journal, fcntl.LOCK_EX)
        with pytest.raises(UsageError, match="still running there"):
            read_history(killed, PLAN)
    assert read_history(killed, PLAN).attempt == 1


def test_an_open_journal_is_known_by_its_lock(tmp_path: Path) -> None:
    path = journal_path(tmp_path, 0)
    with Journal.create(path, make_header(PLAN, 0)):
        assert is_being_written(path)
    assert not is_being_written(path) and not is_being_written(tmp_path / "none")


def test_attempts_are_found_in_order(tmp_path: Path) -> None:
    for name in ("attempt10", "attempt2", "attempt02", "attempt", "attempts"):
        (tmp_path / name).mkdir()
    (tmp_path / "attempt3").touch()
    assert [path.name for path in attempt_folders(tmp_path)[1:]] == ["attempt2", "attempt10"]

"""A reduction in several processes: the same bytes, whatever becomes of the processes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.errors import TraceError
from hpcbench.plan.case import Case
from hpcbench.reduce import processes
from hpcbench.reduce import processes as reduced_case
from hpcbench.reduce.history import Attempts
from hpcbench.reduce.processes import GROUP_BYTES, Group, Processes, group_bytes, read_group
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult
from hpcbench.trace.arena import Arena
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import Record
from synthetic import (
    BASE_NS,
    CASE_NS,
    make_case,
    plan_of,
    sync_note,
    with_rows,
    write_synthetic_run,
)

SEVERAL = [Processes(2), Processes(4), Processes(3, "spawn")]
IDS = ["2 forked", "4 forked", "3 spawned"]


class Unreadable:
    """Of a plug-in: it can be sent, and cannot be made again from what was sent."""

    def __init__(self, key: str) -> None:
        self.found = {"alone": 1}[key]

    def __reduce__(self) -> tuple[type[Unreadable], tuple[str]]:
        return Unreadable, ("gone",)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have the smallest run be worth several processes, a case a group, and small chunks."""
    monkeypatch.setattr(Processes, "for_bytes", lambda self, *_: self)
    monkeypatch.setattr(processes, "_LEAST_GROUP_BYTES", 1)
    monkeypatch.setattr(processes, "GROUP_BYTES", 4)
    monkeypatch.setattr("hpcbench.reduce.results_file.CHUNK_ROWS", 42)


def cases_of_all_sorts(*, even: bool) -> list[Case]:
    return [make_case(index, world_size=1 + (index % 3 > 0), iterations=19 + (0 if even else index),
                      skip="no" if index == 4 else None) for index in range(9)]


def write_run(folder: Path, *, even: bool = False, sealed: bool = True) -> None:
    """Nine cases on two nodes: a skipped one, one that failed, one of unequal samples, phases."""
    cases = cases_of_all_sorts(even=even)

    def change(rank: int, record: Record) -> Iterable[Record]:
        if (rank, record.case_id) == (1, cases[5].case_id):
            yield with_rows(record, record.samples.rows()[:7])
        elif record.case_id == cases[7].case_id:
            yield replace(record, status="failed", reason="a reason")
        else:
            rows = record.samples.rows()
            rows[:, 1] += np.random.default_rng(rank).integers(0, 999, len(rows))
            record = with_rows(record, rows)
            yield record if int(record.case_id[-1], 16) % 2 else replace(record, phases={
                name: rows[:, 1] - rows[:, 0] for name in ("forward", "backward")})

    def notes(rank: int) -> Iterable[tuple[str, dict[str, Any]]]:
        for at_ns in (BASE_NS, BASE_NS + 2000 * CASE_NS):
            yield sync_note(replace(ClockModel.identity(at_ns), bound_ns=9.0 * rank), f"n{rank}")

    write_synthetic_run(
        folder, plan_of(cases, 2, passes=2), change=change, notes=notes, sealed=sealed)


def bytes_of(folder: Path, several: Processes | None = None) -> bytes:
    """The results file that these processes make; none of them is left."""
    reduce_folder(folder, processes=several)
    assert not multiprocessing.active_children()
    return (folder / "results.h5").read_bytes()


def read_here(
    monkeypatch: pytest.MonkeyPatch, read: Callable[..., Any] = read_group,
) -> list[Group]:
    """The groups that this process will have read itself; ``read`` does it in all."""
    own: list[Group] = []
    here = os.getpid()

    def noted(group: Group, *others: object) -> object:
        if os.getpid() == here:
            own.append(group)
        return read(group, *others)

    monkeypatch.setattr(reduced_case, "read_group", noted)
    return own


def no_more() -> int:
    """Fork where there may be no more processes."""
    raise BlockingIOError(11, "Resource temporarily unavailable")


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("even", [True, False], ids=["even", "uneven"])
@pytest.mark.parametrize("several", SEVERAL, ids=IDS)
def test_the_results_are_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: Processes, even: bool,
) -> None:
    """By other processes alone, or by this one where there can be no other."""
    write_run(tmp_path, even=even)
    alone = reduce_folder(tmp_path)
    content = (tmp_path / "results.h5").read_bytes()
    assert {item.status for item in alone.cases} == {"ok", "skipped", "failed"}
    own = read_here(monkeypatch)
    assert bytes_of(tmp_path, several) == content and not own
    assert reduce_folder(tmp_path, processes=several) == alone and not own
    monkeypatch.setattr(os, "fork", no_more)
    if several.start == "fork":
        assert bytes_of(tmp_path, several) == content and len(own) == 9


@pytest.mark.usefixtures("small")
def test_a_process_that_is_killed_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(tmp_path)
    alone, here = bytes_of(tmp_path), os.getpid()
    dying = cases_of_all_sorts(even=False)[3]

    def read(group: Group, attempts: Attempts, memory: Arena) -> Iterator[object]:
        if dying in group and os.getpid() != here:
            os.kill(os.getpid(), signal.SIGKILL)
        return read_group(group, attempts, memory)

    own = read_here(monkeypatch, read)
    assert bytes_of(tmp_path, Processes(2)) == alone
    assert [dying] in own and len(own) <= processes._GIVEN


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("observed", [
    {"seen": lambda: 0}, ValueError("of a plug-in"), {"seen": Unreadable("alone")}])
def test_what_cannot_be_sent_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, observed: object,
) -> None:
    """As what a plug-in makes of stamps: a class that another process does not know, an error."""
    write_run(tmp_path)
    monkeypatch.setattr(reduced_case, "observe", lambda *_: observed)
    alone = reduce_folder(tmp_path).missing_kinds
    own = read_here(monkeypatch)
    found = reduce_folder(tmp_path, processes=Processes(2))
    assert found.missing_kinds == alone != {} and own and not multiprocessing.active_children()


@pytest.mark.usefixtures("small")
def test_one_case_that_cannot_be_sent_leaves_the_others_to_the_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be one of a group with others, before and behind; neighbours are read at once."""
    write_run(tmp_path)
    cases = cases_of_all_sorts(even=False)
    unsendable = [cases[1], cases[2], cases[6]]

    def observe(item: CaseResult, *_: object) -> object:
        return ValueError("of a plug-in") if item.case in unsendable else None

    monkeypatch.setattr(reduced_case, "observe", observe)
    monkeypatch.setattr("hpcbench.reduce.reduce.case_groups",
                        lambda *_: [cases[:4], cases[4:5], cases[5:]])
    alone = bytes_of(tmp_path)
    own = read_here(monkeypatch)
    assert bytes_of(tmp_path, Processes(2)) == alone and own == [cases[1:3], cases[6:7]]


@pytest.mark.usefixtures("small")
def test_work_that_cannot_be_sent_is_done_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_run(tmp_path)
    alone = bytes_of(tmp_path)

    def unsendable(_: object) -> object:
        raise TypeError("cannot pickle '_thread.lock' object")

    monkeypatch.setattr(processes.Work, "__reduce__", unsendable)
    own = read_here(monkeypatch)
    assert bytes_of(tmp_path, Processes(2, "spawn")) == alone and len(own) == 9


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("several", SEVERAL, ids=IDS)
def test_a_trace_that_was_cut_off_is_reduced_as_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: Processes,
) -> None:
    """Of such a trace only the journal is there."""
    write_run(tmp_path, sealed=False)
    assert not [*(tmp_path / "traces").glob("*.h5")]
    alone = bytes_of(tmp_path)
    own = read_here(monkeypatch)
    assert bytes_of(tmp_path, several) == alone and not own


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("several", SEVERAL, ids=IDS)
def test_an_error_is_told_as_by_one_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, several: Processes,
) -> None:
    write_run(tmp_path)
    started = processes.reduced_cases

    def vanishing(work: Any) -> Any:
        (tmp_path / "traces" / "rank00001.h5").unlink()
        return started(work)

    monkeypatch.setattr("hpcbench.reduce.reduce.reduced_cases", vanishing)
    with pytest.raises(TraceError, match="rank00001.h5"):
        reduce_folder(tmp_path, processes=several)
    assert not multiprocessing.active_children()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "traces"]


SLOW = r"""
import os, sys, time
from pathlib import Path
from hpcbench.reduce import processes
from hpcbench.reduce.reduce import reduce_folder

def read(*given, of=processes.read_group):
    os.write(1, f"{os.getpid()}\n".encode())  # in one piece
    time.sleep(0.5)
    return of(*given)

processes.read_group = read
processes._LEAST_GROUP_BYTES, processes.GROUP_BYTES = 1, 3
processes.Processes.for_bytes = lambda self, *_: self
reduce_folder(Path(sys.argv[1]), processes=processes.Processes(3))
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_they_end_with_their_parent_and_say_nothing(tmp_path: Path, number: int) -> None:
    """Killed alone, it cannot end them: they find nobody who listens. Ctrl-C reaches all."""
    write_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", SLOW, str(tmp_path)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as parent:
        assert parent.stdout is not None and parent.stderr is not None
        pids: set[int] = set()
        while len(pids) < 3:  # each of nine cases is read by some process
            pids.add(int(parent.stdout.readline()))
        (os.kill if number == signal.SIGKILL else os.killpg)(parent.pid, number)
        _, errors = parent.communicate(timeout=30)  # to the end of it, which all of them hold
    assert parent.pid not in pids
    deadline = time.monotonic() + 10
    while any(map(_lives, pids)):
        assert time.monotonic() < deadline, pids
        time.sleep(0.02)
    assert errors.count("Traceback") == (number == signal.SIGINT)


SPAWNED = r"""
import os, sys, time
from pathlib import Path
from hpcbench.reduce import processes
from hpcbench.reduce.reduce import reduce_folder

def shared(*given):
    os.write(1, b"started\n")
    time.sleep(30)

processes._Shared = shared
processes._LEAST_GROUP_BYTES, processes.GROUP_BYTES = 1, 3
processes.Processes.for_bytes = lambda self, *_: self
reduce_folder(Path(sys.argv[1]), processes=processes.Processes(2, "spawn"))
"""


@pytest.mark.parametrize("after_s", [0.0, 0.1, 0.2])
def test_ctrl_c_while_they_start_is_told_once(tmp_path: Path, after_s: float) -> None:
    """A new process of Python needs half a second until it ignores it."""
    write_run(tmp_path)
    with subprocess.Popen([sys.executable, "-c", SPAWNED, str(tmp_path)], text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          start_new_session=True) as parent:
        assert parent.stdout is not None and parent.stdout.readline() == "started\n"
        time.sleep(after_s)
        os.killpg(parent.pid, signal.SIGINT)
        _, errors = parent.communicate(timeout=30)
    assert errors.count("Traceback") == 1, errors


def _lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_few_records_are_reduced_alone_and_groups_bound_the_memory() -> None:
    mib = 1 << 20
    assert [Processes(16).for_bytes(size * mib, mib).most
            for size in (1, 63, 64, 97, 10**6)] == [1, 1, 2, 2, 2]
    assert [Processes(16, "spawn").for_bytes(size * mib, mib).most
            for size in (511, 512, 10**6)] == [1, 2, 2]
    assert Processes(1).for_bytes(10**12, 1).most == Processes(3).for_bytes(0, 0).most == 1
    assert [Processes(16).for_bytes(10**12, size * mib).most for size in (
        0, 32, 64, 65, 10**4)] == [2, 2, 2, 1, 1]
    assert group_bytes(1, 1) == group_bytes(10**12, 1) == GROUP_BYTES
    for number in (2, 3, 4):
        for size in (1, 100 * mib, 10**12):
            assert 8 * mib <= group_bytes(size, number) <= 2 * GROUP_BYTES // number

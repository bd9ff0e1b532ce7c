"""Processes that answer, die, hang or are killed for memory: what comes of them."""

from __future__ import annotations

import ctypes
import gc
import os
import re
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from hpcbench.backends.child import Answers, Child, kept_child, run_in_children
from hpcbench.launch import template_process as processes
from hpcbench.launch.template_process import KILLED_FOR_MEMORY
from hpcbench.launch.verdict import Evidence, RankOutcome
from hpcbench.launch.worker_group import Observation, with_advice
from hpcbench.launch.worker_process import Template, WorkerProcess
from results_factory import make_case
from training_cases import make_training, make_training_case


def asked(question: Any, limit_s: float = 20.0) -> Answers:
    return Child(question).wait(limit_s)


def left_at_once() -> None:
    os._exit(3)


def read_nowhere() -> None:
    ctypes.string_at(0)


def refused() -> None:
    raise LookupError("no such GPU\nand more")


def hang_here() -> None:
    time.sleep(1000)


def first_and(then: Any) -> Any:
    def question() -> Iterator[tuple[str, Any]]:
        yield "first", [1, None, "x"]
        then()
        yield "second", 2

    return question


def test_all_answers_come_whatever_threads_are_left() -> None:
    def start() -> None:
        threading.Thread(target=time.sleep, args=(1000,)).start()

    assert asked(first_and(start)) == Answers({"first": [1, None, "x"], "second": 2}, None)


@pytest.mark.parametrize(("end", "lost"), [
    (left_at_once, "ended with exit code 3"),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by signal 9 (SIGKILL)"),
    (read_nowhere, "ended by signal 11 (SIGSEGV) in string_at"),
    (os.abort, "ended by signal 6 (SIGABRT) in question"),
    (refused, "ended by LookupError: no such GPU (test_child.py:"
     f"{refused.__code__.co_firstlineno + 1})"),
])
def test_an_end_costs_what_was_not_answered_before_it(
    end: Any, lost: str, capfd: pytest.CaptureFixture[str],
) -> None:
    assert asked(first_and(end)) == Answers({"first": [1, None, "x"]}, lost)
    assert not capfd.readouterr().err


def test_one_that_hangs_is_ended_and_its_place_named() -> None:
    began_s = time.monotonic()
    found = asked(first_and(hang_here), 0.2)
    assert found == Answers({"first": [1, None, "x"]}, "gave no answer in 0.2 s in hang_here")
    assert time.monotonic() - began_s < 10


def test_one_that_is_quiet_is_ended_and_one_that_works_is_not() -> None:
    began_s = time.monotonic()
    found = Child(first_and(hang_here)).wait(60.0, 0.3)
    assert found == Answers({"first": [1, None, "x"]}, "gave no answer in 0.3 s in hang_here")
    assert time.monotonic() - began_s < 10

    def work() -> None:
        while time.process_time() < 0.6:
            pass

    def take_turns() -> Iterator[tuple[str, Any]]:
        for number in range(4):
            time.sleep(0.1)
            yield "number", number

    assert Child(first_and(work)).wait(60.0, 0.3).lost is None
    assert Child(take_turns).wait(60.0, 0.3).values == {"number": 3}


def test_a_stall_of_who_asks_costs_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine: what has come meanwhile is read before the child is given up."""
    def stalled(child: Child) -> bool:
        time.sleep(0.5)
        assert select.select([child._answers], [], [], 20.0)[0]
        return False

    monkeypatch.setattr(Child, "_has_worked", stalled)
    assert Child(first_and(lambda: time.sleep(0.4))).wait(60.0, 0.3).lost is None


def test_one_that_cannot_be_ended_is_left_behind() -> None:
    """A process in the kernel's hands takes no signal; one that is stopped says as little."""
    child = Child(first_and(lambda: os.kill(os.getpid(), signal.SIGSTOP)))
    found = child.wait(0.2)
    assert found.values and str(found.lost).startswith("gave no answer in 0.2 s")


def test_all_are_asked_at_once_and_one_that_hangs_costs_no_other() -> None:
    began_s = time.monotonic()
    found = run_in_children({
        "hangs": first_and(hang_here), "hangs, too": first_and(hang_here), "not asked": None,
        "answers": first_and(lambda: time.sleep(0.1)),
        "much": lambda: [("text", "x" * 30_000)]}, 1.0)
    assert found["not asked"] is None and time.monotonic() - began_s < 10
    ends = {name: one.lost for name, one in found.items() if one}
    assert ends == {**dict.fromkeys(("hangs", "hangs, too"), "gave no answer in 1 s in hang_here"),
                    "answers": None, "much": None}
    assert found["answers"] and found["answers"].values["second"] == 2
    assert found["much"] and len(found["much"].values["text"]) == 30_000


def test_no_process_and_no_file_is_left() -> None:
    def files() -> int:
        return len([*Path("/proc/self/fd").iterdir()])

    before, others = files(), {*psutil.Process().children()}  # of tests before this one
    for end in (left_at_once, read_nowhere, hang_here):
        asked(first_and(end), 0.2)
    assert files() == before
    assert {*psutil.Process().children()} <= others  # no zombie, and nothing that still runs


def test_a_process_that_a_library_leaves_behind_does_not_hold_up_the_answer() -> None:
    def leave_one() -> None:
        if os.fork() == 0:
            time.sleep(30)
            os._exit(0)

    began_s = time.monotonic()
    assert asked(first_and(leave_one)).lost is None
    assert time.monotonic() - began_s < 10


def test_one_that_stays_has_its_files_until_it_is_let_go(tmp_path: Path) -> None:
    """As a driver that stops its GPUs when nothing has them open any more."""
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)

    def question() -> Iterator[tuple[str, Any]]:
        os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)
        yield "opened", True

    with kept_child(question, 20.0) as answers:
        found = answers()
        writer = os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)  # refused where no one reads
        assert os.write(writer, b"x") == 1
        assert asked(first_and(lambda: None)).lost is None  # the next one keeps no other's end
    assert found == Answers({"opened": True}, None)
    with pytest.raises(BrokenPipeError):
        os.write(writer, b"x")
    os.close(writer)


def test_a_huge_limit_of_open_files_costs_no_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the system has no close_range, Python closes every number: 2**30 of them in minutes."""
    def one_by_one(low: int, high: int) -> None:
        time.sleep(1e-7 * max(0, high - low))

    monkeypatch.setattr(os, "closerange", one_by_one)
    monkeypatch.setattr(os, "sysconf", lambda name: 1073741816)
    reader, writer = os.pipe()

    def question() -> Iterator[tuple[str, Any]]:
        yield "open", [int(file.name) for file in Path("/proc/self/fd").iterdir()
                       if file.resolve() != Path(os.devnull)]

    found = asked(question, 5.0)
    os.close(reader)
    os.close(writer)
    assert found.lost is None and not {reader, writer} & {*found.values["open"]}


def test_what_a_library_prints_is_no_answer() -> None:
    script = ("import os\nfrom hpcbench.backends.child import Child\n"
              "def question():\n    os.write(1, b'noise')\n    yield 'a', 1\n"
              "print(Child(question).wait(20).values)")
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True,
                          check=True)
    assert (done.stdout, done.stderr) == ("{'a': 1}\n", "noise")


def sighting(cause: str) -> Observation:
    return Observation(Evidence(1, RankOutcome.DIED, cause))


def test_a_training_that_the_kernel_killed_for_memory_states_what_would_fit() -> None:
    killed = sighting(f"worker ended by signal 9 (SIGKILL), {KILLED_FOR_MEMORY} (cgroup oom_kill)")
    options = (("bucket_mb", 25), ("comm_hook", "none"))
    case = make_training_case(make_training(batch_size=2**20, options=options))
    told = with_advice(killed, case, 2).evidence.cause
    assert told.startswith(killed.evidence.cause)
    assert re.search(r": [\d.]+ GiB for each rank; predicted [\d.]+ .iB; to fit, as predicted: "
                     r"batch_size \d+, or accumulation \d+$", told)
    assert with_advice(killed, make_case(), 2) == killed
    other = sighting("worker ended by signal 11 (SIGSEGV)")
    assert with_advice(other, case, 2) == other


class Killed(Template):
    """A template whose worker was killed."""

    def __init__(self) -> None:
        pass

    def exit_code(self, pid: int, timeout_s: float) -> int:
        return -signal.SIGKILL


@pytest.mark.parametrize(("before", "now", "told"), [
    (2, 3, True), (2, 2, False), (None, 3, False), (2, None, False), (None, None, False)])
def test_a_kill_for_memory_is_claimed_only_where_the_kernel_counted_it(
    monkeypatch: pytest.MonkeyPatch, before: int | None, now: int | None, told: bool,
) -> None:
    counts = iter((before, now))
    monkeypatch.setattr(processes, "oom_kills", lambda: next(counts))
    none: Any = None
    worker = WorkerProcess(Killed(), 1, none, none, none, -1)
    assert (KILLED_FOR_MEMORY in worker.how_it_ended()) is told


def test_what_the_parent_left_closes_no_file_of_a_child(
    tmp_path: Path, capfd: pytest.CaptureFixture[str],
) -> None:
    """A fork's collector drops objects of the parent, which then close their descriptors."""
    (tmp_path / "parents").write_text("parent's")
    (tmp_path / "own").write_text("the child's own")
    files = [os.open(tmp_path / "parents", os.O_RDONLY) for _ in range(20)]
    holder = type("Holder", (), {})()
    holder.itself = holder  # a circle: collected when the collector runs, not at once
    for file in files:
        weakref.finalize(holder, os.close, file)

    def question() -> Iterator[tuple[str, Any]]:
        nonlocal holder
        own = [os.open(tmp_path / "own", os.O_RDONLY) for _ in range(20)]
        del holder
        gc.collect()
        yield "own", [os.read(file, 99).decode() for file in own]

    found = asked(question)
    assert (found.lost, found.values) == (None, {"own": ["the child's own"] * 20})
    assert capfd.readouterr().err == ""

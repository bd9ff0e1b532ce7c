"""Run driver and library calls that may crash or hang in a child: only their answers are lost."""

from __future__ import annotations

import contextlib
import faulthandler
import json
import math
import os
import re
import resource
import select
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from hpcbench.import_path import die_with_parent
from hpcbench.measurement.process import KernelFiles
from hpcbench.operations.gpu_nodes import nvidia_gpus
from hpcbench.records import dataclass
from hpcbench.texts import error_line

ChildTask = Callable[[], Iterable[tuple[str, Any]]]
"""Yields names and plain JSON values, each when it is known."""
LIMIT_S = 60.0
"""The longest wait for a driver, which takes 1 to 3 s per GPU where nothing holds GPUs open
(NVIDIA's "Driver Persistence"): 48 s for 16."""
QUIET_S = 0.7
"""A library whose driver is up, and which neither answers nor uses a core for so long, hangs."""
_START_OF_A_GPU_S = 3.0
_STEP_S = 0.1
"""How often the child's end is checked: another process may hold its end of the pipe."""
_REPORT_S = 1.0
"""For a hanging child to report where, and to die; in the kernel it can do neither."""
_WHERE = re.compile(rb'^  File ".*", line \d+ in (.+)\n', re.MULTILINE)
"""The first line of a stack of faulthandler: the innermost function."""
_MOST_FILES = 1 << 16
"""So many numbers are tried where the system does not list what is open."""
_LAST_LINE = re.compile(rb'(^|\n){"end": .*\n$')


def gpus_start_s(root: Path = Path("/")) -> float:
    """Return how long a driver may take to start this machine's GPUs."""
    return _START_OF_A_GPU_S * nvidia_gpus(root)


@dataclass(frozen=True, slots=True)
class Answers:
    """A child's answers by name, and how it ended before it had given all, or None."""

    values: dict[str, Any]
    lost: str | None


def run_in_children(
    questions: Mapping[str, ChildTask | None], limit_s: float = LIMIT_S,
    quiet_s: Mapping[str, float] = MappingProxyType({}),
) -> dict[str, Answers | None]:
    """Run each task in a child of its own, all concurrently; None gives None. ``quiet_s``: of some,
    after how long without an answer they are given up (`Child.answers`)."""
    children = {name: Child(question) for name, question in questions.items() if question}
    outcomes = {name: child.wait(limit_s, quiet_s.get(name, math.inf))
                for name, child in children.items()}
    return {name: outcomes.get(name) for name in questions}


@contextlib.contextmanager
def kept_child(
    question: ChildTask | None, limit_s: float,
) -> Iterator[Callable[[], Answers | None]]:
    """Give the call that waits for a child's answers; the child lives until the block ends."""
    if question is None:
        yield lambda: None
        return
    child = Child(question)
    try:
        yield lambda: child.answers(limit_s)
    finally:
        child.close()


class Child:
    """A fork of this process that answers a question. Fork before threads, and before CUDA."""

    def __init__(self, question: ChildTask) -> None:
        """Start the child. It stays after its last answer, with its open files, until `close`."""
        self._answers, answers = os.pipe()
        self._stack, stack = os.pipe()
        stay, self._stay = os.pipe()
        parent = os.getpid()
        self._began_s = time.monotonic()
        self._pid = os.fork()
        if self._pid == 0:
            _answer(question, parent, _ChildFiles(answers, stack, stay))
        for file in (answers, stack, stay):
            os.close(file)
        self._status: int | None = None
        self._ticks: list[str] = []

    def wait(self, limit_s: float, quiet_s: float = math.inf) -> Answers:
        """Return its `answers`; then the child is killed."""
        try:
            return self.answers(limit_s, quiet_s)
        finally:
            self.close()

    def close(self) -> None:
        """End the child, without the exit handlers of libraries, and close its pipes."""
        os.close(self._stay)
        self._reap(_REPORT_S)
        self._signal(signal.SIGKILL)
        os.close(self._answers)
        os.close(self._stack)

    def answers(self, limit_s: float, quiet_s: float = math.inf) -> Answers:
        """Return the answers given within ``limit_s`` of the start, and before it was ``quiet_s``
        without an answer or work of its own; a child that is done stays until `close`."""
        left_s = max(limit_s - (time.monotonic() - self._began_s), _REPORT_S)
        printed, in_time = self._printed(time.monotonic() + left_s, quiet_s)
        if not in_time:
            self._signal(signal.SIGUSR1)
        where = self._where(0 if in_time else _REPORT_S)
        if not in_time:
            self._signal(signal.SIGKILL)
        lines = [json.loads(line) for line in printed.split(b"\n")[:-1]]  # the last one is torn
        values = {line["name"]: line["value"] for line in lines if "name" in line}
        if lines and "end" in lines[-1]:
            return Answers(values, lines[-1]["end"])
        if in_time:
            self._reap(_REPORT_S)
        code = None if self._status is None else os.waitstatus_to_exitcode(self._status)
        ended = ending(code) if in_time else f"gave no answer in {min(limit_s, quiet_s):.3g} s"
        return Answers(values, f"{ended} in {where}" if where else ended)

    def _printed(self, deadline: float, quiet_s: float) -> tuple[bytes, bool]:
        """Return all that it wrote, and whether it answered or ended by itself.

        What came while this process had no core is read before the child is given up."""
        data, worked_s, is_over = b"", time.monotonic(), False
        while not is_over:
            left_s = max(min(deadline, worked_s + quiet_s) - time.monotonic(), 0)
            is_over, ended = left_s == 0, self._has_ended()
            if select.select([self._answers], [], [], 0 if ended else min(left_s, _STEP_S))[0]:
                if not (part := os.read(self._answers, 65536)):
                    return data, True
                data, worked_s = data + part, time.monotonic()
                if _LAST_LINE.search(data):
                    return data, True
            elif ended:
                return data, True
            elif self._has_worked():
                worked_s = time.monotonic()
            is_over = is_over and min(deadline, worked_s + quiet_s) <= time.monotonic()
        return data, False

    def _has_worked(self) -> bool:
        """Return whether it waits for a core, or has used one since it was asked last."""
        fields = (KernelFiles().text(f"proc/{self._pid}/stat") or "").rpartition(")")[2].split()
        before, self._ticks = self._ticks, fields[11:13]
        return fields[:1] == ["R"] or self._ticks != before

    def _has_ended(self) -> bool:
        if self._status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self._status = status if pid else None
        return self._status is not None

    def _reap(self, timeout_s: float) -> None:
        """Wait for its end, which does not come while it hangs in the kernel."""
        deadline = time.monotonic() + timeout_s
        while not self._has_ended() and time.monotonic() < deadline:
            time.sleep(0.001)

    def _signal(self, number: signal.Signals) -> None:
        if not self._has_ended():
            os.kill(self._pid, number)

    def _where(self, timeout_s: float) -> str:
        """Return the function in which it crashed or hangs, "" if it reports none."""
        data, deadline = b"", time.monotonic() + timeout_s
        while not (match := _WHERE.search(data)):
            left_s = max(deadline - time.monotonic(), 0)
            if not select.select([self._stack], [], [], left_s)[0] or not (
                    part := os.read(self._stack, 65536)):
                return ""
            data += part
        return match[1].decode(errors="replace")


def ending(code: int | None) -> str:
    if code is None or code >= 0:
        return f"ended with exit code {code}"
    with contextlib.suppress(ValueError):  # a signal without a name
        return f"ended by signal {-code} ({signal.Signals(-code).name})"
    return f"ended by signal {-code}"


class _ChildFiles(NamedTuple):
    """The files that a child keeps open: pipes for answers, for its stack, and for its stay."""

    answers: int
    stack: int
    stay: int


def _answer(question: ChildTask, parent: int, files: _ChildFiles) -> None:
    """Answer in this fork, and end it; never returns."""
    try:
        die_with_parent(parent)
        signal.set_wakeup_fd(-1)  # the parent's
        faulthandler.enable(files.stack, all_threads=False)
        faulthandler.register(signal.SIGUSR1, files.stack, all_threads=False)
        _keep_only(files)
        end = None
        try:
            for name, value in question():
                _write(files.answers, {"name": name, "value": value})
        except Exception as error:
            end = f"ended by {error_line(error, os.environ)}"
        _write(files.answers, {"end": end})
        os.read(files.stay, 1)
    finally:
        os._exit(0)  # at once: neither libraries nor their threads are waited for


def _keep_only(files: Iterable[int]) -> None:
    """Close the parent's files in this fork, print to its stderr, and dump no core.

    Their numbers stay taken: objects of the parent that are collected here close them again, which
    would close files of the fork's."""
    os.dup2(2, 1)
    sys.stdout = sys.stderr = open(2, "w", buffering=1, closefd=False)  # noqa: SIM115
    nothing = os.open(os.devnull, os.O_RDWR)
    for file in _open_files() - {0, 1, 2, nothing, *files}:
        with contextlib.suppress(OSError):  # the folder of open files was one of them
            os.fstat(file)
            os.dup2(nothing, file, inheritable=False)
    _, most = resource.getrlimit(resource.RLIMIT_CORE)
    resource.setrlimit(resource.RLIMIT_CORE, (0, most))


def _open_files() -> set[int]:
    """Return open files. Closing every number up to the limit takes minutes where that is 2**30."""
    try:
        return {int(file.name) for file in Path("/dev/fd").iterdir()}
    except OSError:  # no /proc
        return {*range(min(os.sysconf("SC_OPEN_MAX"), _MOST_FILES))}


def _write(file: int, line: dict[str, Any]) -> None:
    data = json.dumps(line).encode() + b"\n"
    while data:
        data = data[os.write(file, data):]

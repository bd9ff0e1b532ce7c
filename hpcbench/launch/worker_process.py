"""The supervisor's side of a worker: the template that forks it, its channel, output and end."""

from __future__ import annotations

import contextlib
import json
import mmap
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from hpcbench.backends.child import ending
from hpcbench.errors import LaunchError, how_to_install
from hpcbench.launch import messages
from hpcbench.launch import template_process as processes
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.messages import (
    Answer,
    CaseRequest,
    FailureAnswer,
    LeaveRequest,
    ProfileRequest,
    Request,
)
from hpcbench.launch.template_process import AnyTemplate, JoinedTemplate, TemplateProcess
from hpcbench.launch.verdict import RankOutcome
from hpcbench.measurement.control import SharedProgress
from hpcbench.records import dataclass
from hpcbench.texts import masked, say

KEPT_BYTES = 512 * 1024
"""Kept at both ends of a case's output: connections are made at its beginning, failures are at its
end."""
SLACK_BYTES = 4 * 2**20
"""Memory is released in such steps, so that a case that prints little costs nothing."""


class WorkerOutput:
    """An anonymous file that one worker writes to and its supervisor reads.

    Its size only grows; what is not kept becomes a hole."""

    def __init__(self) -> None:
        self.fd = os.memfd_create("hpcbench-worker-output")
        self._mark = 0
        self._tidied = 0

    def size(self) -> int:
        return os.fstat(self.fd).st_size

    def mark(self) -> None:
        """Have `since_mark` return what is printed from now on."""
        self._mark = self.size()
        self.tidy()

    def since_mark(self) -> bytes:
        """Return the output since the mark: all, or the lines in its ends of KEPT_BYTES each."""
        end = self.size()
        if end - self._mark <= 2 * KEPT_BYTES:
            return os.pread(self.fd, 2 * KEPT_BYTES, self._mark)
        first = os.pread(self.fd, KEPT_BYTES, self._mark)
        last = os.pread(self.fd, KEPT_BYTES, end - KEPT_BYTES)
        return first.rpartition(b"\n")[0] + b"\n" + last.partition(b"\n")[2]

    def tidy(self) -> None:
        """Release what neither `since_mark` nor the last lines need."""
        kept_from = self.size() - KEPT_BYTES
        if kept_from - self._tidied >= SLACK_BYTES:
            self._tidied = kept_from
            _give_back(self.fd, 0, min(self._mark, kept_from))
            _give_back(self.fd, self._mark + KEPT_BYTES, kept_from)

    def close(self) -> None:
        os.close(self.fd)


def _give_back(fd: int, first: int, last: int) -> None:
    """Make a hole of the whole pages between two positions; the size stays."""
    first, last = -(-first // mmap.PAGESIZE) * mmap.PAGESIZE, last // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last:
        with (suppress(OSError),  # no reason to end a job: it then takes the memory that it takes
              mmap.mmap(fd, last - first, offset=first) as pages):
            pages.madvise(mmap.MADV_REMOVE)


def read_tail(fd: int, size_bytes: int) -> str:
    """Return the end of an output file from its first whole line, secrets masked."""
    length = os.fstat(fd).st_size
    text = text_of(os.pread(fd, size_bytes, max(0, length - size_bytes)))
    return text if length <= size_bytes else text.partition("\n")[2]


def text_of(output: bytes) -> str:
    """Return a worker's output as text, without secrets that it may have from this environment."""
    return masked(output.decode(errors="replace"), os.environ)


def case_stacks(stacks: str) -> str:
    """Return faulthandler's stacks, the interrupted thread first, without the flight record's.

    faulthandler begins with the newest thread, and reports show the first lines only."""
    threads = [thread.strip("\n") for thread in stacks.split("\n\n")
               if "profiling/flight.py" not in thread]
    threads.sort(key=lambda thread: not thread.startswith("Current thread"))
    return "\n\n".join(threads)


_MESSAGE_BYTES = 256 * 1024
_STDERR_BYTES = 16 * 1024
_STACK_WAIT_S = 0.3
_FLIGHT_WAIT_S = 0.3
_FLIGHT_BYTES = 1 << 20
_GONE_S = 5.0
_GONE_ON_GPU_S = 50.0
"""A driver frees a GPU's memory, and waits for a kernel, when the process ends."""
_GONE_STEP_S = 0.2
"""How often a request to stop the rank is checked meanwhile."""


class WorkerHandle(Protocol):
    """A supervisor's view of its worker: a process of its own, or inline (the defaults here)."""

    progress: SharedProgress

    @property
    def pid(self) -> int:
        ...

    def send(self, request: Request) -> None:
        """Hand over one request."""

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        """Sleep until the worker has answered or ended, or ``wakeup_fd`` is readable (False)."""

    def receive(self) -> Answer | None:
        """Return the answer, or None if the worker has ended."""

    def how_it_ended(self) -> str:
        """Return the signal or exit code in words."""
        return "inline worker, still running"

    def is_stopped(self) -> bool:
        """Return whether the kernel has stopped the process (SIGSTOP, debugger)."""
        return False

    def stacks(self) -> str:
        """Return the stacks of its threads, "" if it cannot answer."""
        return ""

    def flight_record(self) -> Mapping[str, Any]:
        """Return its last collectives (`profiling.flight`), {} if it cannot answer."""
        return {}

    def last_output(self) -> str:
        """Return the last lines the worker printed."""
        return ""

    def newly_printed(self) -> str:
        """Return the output since the last call, secrets not masked."""
        return ""

    def leave(self, timeout_s: float) -> str:
        """Have it leave the group and end; return how it ended if that was no answer, else ""."""

    def kill(self) -> None:
        """End it now; its successor waits until it is gone."""


@dataclass(frozen=True, slots=True)
class TemplateSpec:
    """The variables of a template, the kinds of its cases, and the longest it may take to start."""

    env: Mapping[str, str]
    ready_timeout_s: float
    kinds: Sequence[str] = ()


class Template:
    """The template process of this rank; its end ends its workers."""

    def __init__(
        self, spec: TemplateSpec, wrapper: Sequence[str] = (),
        early: AnyTemplate | None = None,
    ) -> None:
        """Start it, or take the ``early`` one if it has the same variables; only `fork` waits.

        The words of ``wrapper`` start and watch it."""
        self.env = dict(spec.env)
        self._spec = spec
        self._ended: dict[int, int] = {}
        self._forked: list[int] = []
        self._ready = False
        if early is not None and (early.env != self.env or not early.is_alive()):
            early.close()
            early = None
        self._use(early or TemplateProcess(self.env, wrapper))

    def _use(self, started: AnyTemplate) -> None:
        self._started, self._control = started, started.control
        with contextlib.suppress(OSError):  # it has ended: `fork` reports why
            self._control.send(messages.encoded(messages.LOAD_REQUESTS, tuple(self._spec.kinds)))

    def close(self) -> None:
        self._started.close()

    def _wait_ready(self) -> None:
        """Return when torch is imported. Raises LaunchError with the reason if it cannot be."""
        deadline = time.monotonic() + self._spec.ready_timeout_s
        while not self._ready:
            if self._receive_message(deadline - time.monotonic()):
                continue
            if isinstance(self._started, TemplateProcess) or time.monotonic() >= deadline:
                raise LaunchError(f"the worker template did not start: {self._why_not_ready()}")
            self.close()  # the one that it joined has ended
            self._use(TemplateProcess(self.env))

    def _why_not_ready(self) -> str:
        """Return the error it printed, else how it ended, else that it is late."""
        printed = read_tail(self._started.output_fd, _STDERR_BYTES).strip().splitlines()
        errors = [line.strip() for line in printed if "Error" in line]
        if errors and "No module named 'torch'" in errors[-1]:
            return f"{errors[-1]}: {how_to_install('run')}"
        if errors:
            return errors[-1]
        if (code := self._started.exit_code(1.0)) is not None:
            return f"it {ending(code)}"
        return f"no answer in {self._spec.ready_timeout_s:g} s (launch.init_timeout_s)"

    def fork(
        self, env: Mapping[str, str], memory_limit_bytes: int, progress: SharedProgress,
    ) -> WorkerProcess:
        self._wait_ready()
        ours, theirs = messages.socket_pair()
        output, flight_fd = WorkerOutput(), os.memfd_create("hpcbench-flight-record")
        request = messages.ForkRequest(env, memory_limit_bytes, progress.capacity)
        try:
            socket.send_fds(self._control, [messages.encoded(messages.FORK_REQUESTS, request)],
                            [theirs, progress.fd, output.fd, flight_fd])
            while not self._forked:
                if not self._receive_message(self._spec.ready_timeout_s):
                    raise BrokenPipeError("it does not answer")
        except OSError as error:
            os.close(ours)
            os.close(flight_fd)
            output.close()
            self.close()  # a late answer of it would be taken for another worker's
            raise LaunchError(f"the worker template could not fork a worker: {error}") from error
        finally:
            os.close(theirs)
        channel = messages.supervisor_channel(ours)
        return WorkerProcess(self, self._forked.pop(), channel, output, progress, flight_fd)

    def is_alive(self) -> bool:
        return self._started.is_alive()

    def exit_code(self, pid: int, timeout_s: float) -> int | None:
        """Return the exit code (negative: signal) of a worker that has ended, None if unknown."""
        deadline = time.monotonic() + timeout_s
        while pid not in self._ended and self._control.fileno() >= 0:
            if not self._receive_message(deadline - time.monotonic()):
                break
        return self._ended.get(pid)

    def _receive_message(self, timeout_s: float) -> bool:
        """Take in one message; False if there is none in time or the template is gone."""
        readable, _, _ = select.select([self._control], [], [], max(timeout_s, 0.0))
        try:
            data = self._control.recv(_MESSAGE_BYTES) if readable else b""
        except ConnectionResetError:  # it ended with a message of ours unread; its own may be there
            data = self._control.recv(_MESSAGE_BYTES)
        if not data:
            return False
        event = messages.decoded(messages.TEMPLATE_EVENTS, data)
        if event.event == "ready":
            self._ready = True
            if isinstance(self._started, JoinedTemplate):
                self._started.is_ready(event.pid)
        elif event.event == "forked":
            self._forked.append(event.pid)
        else:
            self._ended[event.pid] = event.code
        return True


class WorkerProcess(WorkerHandle):
    """One forked worker."""

    def __init__(  # noqa: PLR0913
        self, template: Template, pid: int, channel: messages.SupervisorChannel,
        output: WorkerOutput, progress: SharedProgress, flight_fd: int,
    ) -> None:
        self.progress = progress
        self._template = template
        self._pid = pid
        self._channel = channel
        self._output = output
        self._flight_fd = flight_fd
        self._oom_kills = processes.oom_kills()
        self._used_gpu = False
        self._killed_s: float | None = None

    @property
    def pid(self) -> int:
        return self._pid

    def send(self, request: Request) -> None:
        """Hand over one request; a worker that is gone shows when the answer is awaited."""
        if isinstance(request, (CaseRequest, ProfileRequest)):
            self._used_gpu |= request.device == "cuda"
        with contextlib.suppress(OSError):
            self._channel.send(request)

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        self._output.tidy()
        return self._channel.wait(timeout_s, wakeup_fd)

    def receive(self) -> Answer | None:
        try:
            return self._channel.receive()
        except (EOFError, OSError):
            return None
        except ValueError as error:  # of no declared type: a failure of this worker alone
            problem = " ".join(str(error).split())
            return FailureAnswer(RankOutcome.EXCEPTION,
                                 f"the worker's answer is not valid: {problem}")

    def how_it_ended(self) -> str:
        code = self._template.exit_code(self._pid, 5.0)
        if code is None:
            gone = "" if self._template.is_alive() else " together with its template process"
            return f"worker ended{gone}, exit status unknown"
        before, now = self._oom_kills, processes.oom_kills()
        for_memory = code == -signal.SIGKILL and None not in (before, now) and (
            int(now or 0) > int(before or 0))
        more = f", {processes.KILLED_FOR_MEMORY} (cgroup oom_kill)" if for_memory else ""
        return f"worker {ending(code)}{more}"

    def is_stopped(self) -> bool:
        return processes.process_state(self._pid) in ("T", "t")

    def stacks(self) -> str:
        before = self._output.size()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR1)
        deadline = time.monotonic() + _STACK_WAIT_S
        while time.monotonic() < deadline and self._output.size() == before:
            time.sleep(0.01)
        time.sleep(0.01)  # the dump is several writes
        return case_stacks(text_of(os.pread(self._output.fd, _STDERR_BYTES, before)))

    def flight_record(self) -> Mapping[str, Any]:
        """Ask for the collectives that it called last; {} if no whole answer comes in time."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGUSR2)
        deadline, text = time.monotonic() + _FLIGHT_WAIT_S, b""
        while not text.endswith(b"\n") and time.monotonic() < deadline:
            time.sleep(0.005)
            text = os.pread(self._flight_fd, _FLIGHT_BYTES, 0)
        with contextlib.suppress(ValueError):  # a case may have written there, too
            record = json.loads(text) if text.endswith(b"\n") else {}
            if isinstance(record, dict) and all(
                    isinstance(entry, dict) for entry in record.get("entries", ())):
                return record
        return {}

    def last_output(self) -> str:
        return read_tail(self._output.fd, 4096)

    def newly_printed(self) -> str:
        text = self._output.since_mark().decode(errors="replace")
        self._output.mark()
        return text

    def leave(self, timeout_s: float) -> str:
        self.send(LeaveRequest())
        crashed = self.wait(timeout_s) and self.receive() is None
        ended = self.how_it_ended() if crashed else ""
        self.kill()
        return ended

    def kill(self) -> None:
        """End it now, and close its files here; `await_end` waits until it is gone."""
        if self._template.exit_code(self._pid, 0.0) is None:  # else the pid may be another's
            with contextlib.suppress(ProcessLookupError):
                os.kill(self._pid, signal.SIGKILL)
            self._killed_s = time.monotonic()
        self._channel.close()
        self._output.close()
        os.close(self._flight_fd)

    def await_end(self, stop: StopRequests | None = None) -> None:
        """Wait until a killed worker is gone; report a long wait. A request to ``stop`` at once
        ends it."""
        if self._killed_s is None or self._is_gone(0.0):
            return
        limit_s = _GONE_ON_GPU_S if self._used_gpu else _GONE_S
        gone, took = False, time.monotonic() - self._killed_s
        while not gone and took < limit_s:
            if stop is not None and stop.now:
                return
            gone = self._is_gone(min(_GONE_STEP_S, limit_s - took))
            took = time.monotonic() - self._killed_s
        if not gone:
            say(f"hpcbench: worker {self._pid} was killed, and is still there after {took:.0f} "
                "s: the next one may lack its memory", sys.stderr)
        elif took > _GONE_S:
            say(f"hpcbench: worker {self._pid} took {took:.0f} s to end after it was killed",
                sys.stderr)

    def _is_gone(self, timeout_s: float) -> bool:
        """Return whether it ends in time, by its template or, if that has ended, by the kernel."""
        if self._template.is_alive():
            return self._template.exit_code(self._pid, timeout_s) is not None
        if processes.process_state(self._pid) in ("", "Z", "X"):
            return True
        time.sleep(timeout_s)
        return False


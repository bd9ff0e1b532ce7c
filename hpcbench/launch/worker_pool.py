"""Where a rank's workers come from: one template process at a time, or the MPI process itself."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from hpcbench.backends.child import LIMIT_S, gpus_start_s
from hpcbench.errors import LaunchError
from hpcbench.import_path import module_command
from hpcbench.launch.communicator import InlineComms
from hpcbench.launch.launcher import StopRequests
from hpcbench.launch.messages import Answer, FactsAnswer, FactsRequest, FailureAnswer, Request
from hpcbench.launch.template_process import AnyTemplate, split_by_load_time
from hpcbench.launch.worker_process import Template, TemplateSpec, WorkerHandle, WorkerProcess
from hpcbench.measurement.control import SharedProgress
from hpcbench.measurement.process import (
    spare_what_is_loaded,
    unsupervised,
)
from hpcbench.texts import masked

_SHARE_OF_CUDA = 0.65
"""CUDA's share of the probe's time; other children have less (`backends.facts`)."""
Variables = tuple[tuple[str, str], ...]


class AnsweringWorker(Protocol):
    """What `hpcbench.worker.Worker` does in this process."""

    def answer(self, request: Request) -> Answer: ...

    def leave(self) -> None: ...

    def abandon(self) -> None: ...


LoadWorker = Callable[[], Callable[[SharedProgress, InlineComms | None], AnsweringWorker]]
"""Imports torch, and returns the class of workers."""


class WorkerPool:
    """A context manager that gives workers of any environment; ends them and their template.

    Variables that torch reads when it loads need a template of their own, others are set after the
    fork."""

    def __init__(
        self, spec: TemplateSpec, progress: SharedProgress, *, memory_limit_bytes: int = 0,
        early: AnyTemplate | None = None, inline: LoadWorker | None = None,
    ) -> None:
        """Start a template in the background, or use the ``early`` one; none where `unsupervised`.

        ``inline``: of the workers of `start_inline`."""
        self.progress = progress
        self._inline = inline
        self._spec = spec
        self._memory_limit_bytes = memory_limit_bytes
        self._wrapper: tuple[str, ...] = ()
        self._last: WorkerProcess | None = None
        self._template = (
            None if unsupervised() else Template(spec, early=early))

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        if self._template is not None:
            self._template.close()
        self.progress.close()

    def start_worker(
        self, variables: Variables, *, limited: bool = True, stop: StopRequests | None = None,
    ) -> WorkerProcess:
        """Return a new worker with these variables on top, once a killed one before is gone. Raises
        LaunchError."""
        if self._last is not None:
            self._last.await_end(stop)
        early, late = split_by_load_time(variables)
        template = self._template_for({**self._spec.env, **early})
        self._last = template.fork(late, self._memory_limit_bytes if limited else 0, self.progress)
        return self._last

    def load_inline(self) -> None:
        """Import torch in this process now, not in the first case of `start_inline`."""
        if self._inline is not None:
            self._inline()

    def start_inline(self, variables: Variables, mpi: InlineComms | None) -> InlineWorker:
        """Return a worker in this process. Raises LaunchError."""
        if self._inline is None:
            raise LaunchError("there are no workers in this process")
        return InlineWorker(variables, self.progress, mpi, self._inline)

    def _template_for(self, env: Mapping[str, str]) -> Template:
        if self._template is None:
            raise LaunchError(unsupervised() or "there is no template")
        if self._template.env != env or not self._template.is_alive():
            self._template = self._start(env)
        return self._template

    def renew(self) -> None:
        self._template = self._start(self._spec.env)

    def renew_under(self, wrapper: Sequence[str]) -> None:
        """Have later workers come from a new template that the words of ``wrapper`` start."""
        self._wrapper = tuple(wrapper)
        self._template = self._start(self._spec.env)

    def end_template(self) -> None:
        """End the template process; the next worker gets a new one, without a wrapper."""
        if self._template is not None:
            self._template.close()
        self._wrapper = ()

    def _start(self, env: Mapping[str, str]) -> Template:
        if self._template is not None:
            self._template.close()
        return Template(replace(self._spec, env=env), self._wrapper)

    def facts(self, tools: Sequence[str]) -> Mapping[str, Any]:
        """Return `backends.facts.gather_facts` of a process. Raises LaunchError with the reason."""
        timeout_s = probe_timeout_s(self._spec.ready_timeout_s)
        if self._template is None:
            return facts_of_child(tools, self._spec.env, timeout_s)
        worker = self.start_worker((), limited=False)
        try:
            worker.send(FactsRequest(tuple(tools), cuda_limit_s(timeout_s)))
            in_time = worker.wait(timeout_s)
            answer = worker.receive() if in_time else None
            if isinstance(answer, FactsAnswer):
                return answer.facts
            cause = (masked(answer.cause, os.environ) if isinstance(answer, FailureAnswer)
                     else worker.how_it_ended() if in_time else "no answer in time")
            raise LaunchError(f"the probe of this machine failed: {cause}")
        finally:
            worker.kill()


def probe_timeout_s(ready_timeout_s: float, root: Path = Path("/")) -> float:
    """Return how long a probe may take: the time of a worker's start and that of the GPUs."""
    return ready_timeout_s + gpus_start_s(root)


def cuda_limit_s(timeout_s: float) -> float:
    """Return the time for calls that may hang in the probe, so that the rest is still reported."""
    return min(LIMIT_S, _SHARE_OF_CUDA * timeout_s)


def facts_of_child(
    tools: Sequence[str], env: Mapping[str, str], timeout_s: float,
) -> Mapping[str, Any]:
    """Return `backends.facts.gather_facts` of a process without supervision. Raises LaunchError."""
    try:
        facts: Mapping[str, Any] = printed_json(module_command(
            "hpcbench.backends.facts", str(cuda_limit_s(timeout_s)), *tools), env, timeout_s)
        return facts
    except subprocess.CalledProcessError as error:
        last = (masked(error.stderr, os.environ).strip().splitlines() or ["no output"])[-1]
        raise LaunchError(f"the probe of this machine failed: {last}") from error
    except NO_JSON as error:
        raise LaunchError(f"the probe of this machine failed: {error}") from error


NO_JSON = (OSError, subprocess.SubprocessError, ValueError, IndexError)


def printed_json(command: Sequence[str], env: Mapping[str, str], timeout_s: float) -> Any:
    """Return the last line that a command prints, as JSON. Raises one of `NO_JSON`."""
    done = subprocess.run(command, env=dict(env), capture_output=True, text=True,
                          errors="backslashreplace", timeout=timeout_s, check=True)
    return json.loads(done.stdout.splitlines()[-1])


class InlineWorker(WorkerHandle):
    """Carries a request out when it is sent, in this process: for a debugger, or backend mpi.

    A crash here ends the job and a hang cannot be survived; the run's first lines warn of it."""

    def __init__(
        self, variables: Variables, progress: SharedProgress, mpi: InlineComms | None,
        load: LoadWorker,
    ) -> None:
        """Import torch here and set the variables until the worker leaves. Raises LaunchError."""
        early, late = split_by_load_time(variables)
        if early:
            raise LaunchError(f"inline workers cannot have {', '.join(early)} of their own: it is "
                              "read when torch loads; run without --inline")
        new_worker = load()
        self._before = {name: os.environ.get(name) for name in late}
        os.environ.update(late)
        self.progress = progress
        self._worker = new_worker(progress, mpi)
        spare_what_is_loaded()  # each case begins with a collection
        self._answer: Answer | None = None

    @property
    def pid(self) -> int:
        return os.getpid()

    def send(self, request: Request) -> None:
        self._answer = None
        self._answer = self._worker.answer(request)

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        return True

    def receive(self) -> Answer | None:
        return self._answer

    def leave(self, timeout_s: float) -> str:
        self._worker.leave()
        self._restore()
        return ""

    def kill(self) -> None:
        """Leave the process group without the others, so that a new one can be joined."""
        self._worker.abandon()
        self._restore()

    def _restore(self) -> None:
        for name, value in self._before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        self._before = {}

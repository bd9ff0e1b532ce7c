"""Where a rank's workers come from: one template process at a time, or the MPI process itself."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from hpcbench.errors import LaunchError
from hpcbench.launch.workers.environment import split_by_load_time
from hpcbench.launch.workers.messages import FactsAnswer, FactsRequest, FailureAnswer
from hpcbench.launch.workers.worker_process import Template, WorkerHandle
from hpcbench.masking import masked
from hpcbench.measure.progress import SharedProgress

Variables = tuple[tuple[str, str], ...]


class WorkerPool:
    """A context manager that gives workers of any environment; ends them and their template.

    Variables that torch reads when it loads need a template of their own, all others are set in
    the forked worker.
    """

    def __init__(
        self, env: Mapping[str, str], progress: SharedProgress, *, ready_timeout_s: float,
        kinds: Sequence[str] = (), memory_limit_bytes: int = 0,
    ) -> None:
        """Start the template for ``env`` in the background; cases are of these ``kinds``."""
        self.progress = progress
        self._env = dict(env)
        self._kinds = tuple(kinds)
        self._memory_limit_bytes = memory_limit_bytes
        self._ready_timeout_s = ready_timeout_s
        self._template = self._start(self._env)

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *_: object) -> None:
        self._template.close()
        self.progress.close()

    def _start(self, env: Mapping[str, str]) -> Template:
        return Template(env, self._ready_timeout_s, self._kinds)

    def start_worker(self, variables: Variables, *, limited: bool = True) -> WorkerHandle:
        """Return a new worker with these variables on top. Raises LaunchError."""
        early, late = split_by_load_time(variables)
        wanted = {**self._env, **early}
        if self._template.env != wanted or not self._template.is_alive():
            self._template.close()
            self._template = self._start(wanted)
        limit = self._memory_limit_bytes if limited else 0
        return self._template.fork(late, limit, self.progress)

    def renew(self) -> None:
        """Have later workers come from a new template process: an independent launch."""
        self._template.close()
        self._template = self._start(self._env)

    def facts(self, tools: Sequence[str]) -> Mapping[str, Any]:
        """Return `backends.facts.gather_facts` of a process that ends afterwards.

        Raises LaunchError with the reason if there is no answer.
        """
        worker = self.start_worker((), limited=False)
        try:
            worker.send(FactsRequest(tuple(tools)))
            in_time = worker.wait(self._ready_timeout_s)
            answer = worker.receive() if in_time else None
            if isinstance(answer, FactsAnswer):
                return answer.facts
            cause = (masked(answer.cause, os.environ) if isinstance(answer, FailureAnswer)
                     else worker.how_it_ended() if in_time else "no answer in time")
            raise LaunchError(f"the probe of this machine failed: {cause}")
        finally:
            worker.kill()

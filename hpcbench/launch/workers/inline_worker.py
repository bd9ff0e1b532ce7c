"""The worker inside the MPI process: for a debugger, and for what cannot be isolated.

A crash here ends the job and a hang cannot be survived; the run says so.
"""

from __future__ import annotations

import os

from hpcbench.errors import LaunchError
from hpcbench.launch.ranks.communicator import InlineComms
from hpcbench.launch.workers.environment import split_by_load_time
from hpcbench.launch.workers.messages import Answer, Request
from hpcbench.launch.workers.worker_pool import Variables
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.measure.progress import SharedProgress


class InlineWorker(WorkerHandle):
    """Carries a request out when it is sent, in this process."""

    def __init__(
        self, variables: Variables, progress: SharedProgress, mpi: InlineComms | None,
    ) -> None:
        """Import torch into this process and set the variables until the worker leaves.

        ``mpi`` is what backend mpi works on, None where no case needs it.
        Raises LaunchError for variables that could only be set before torch loads.
        """
        early, late = split_by_load_time(variables)
        if early:
            raise LaunchError(f"inline workers cannot have {', '.join(early)} of their own: it is "
                              "read when torch loads; run without --inline")
        from hpcbench.worker import Worker

        self._before = {name: os.environ.get(name) for name in late}
        os.environ.update(late)
        self.progress = progress
        self._worker = Worker(progress, mpi)
        self._answer: Answer | None = None

    def send(self, request: Request) -> None:
        """Carry out the request now; there is no answer until this returns."""
        self._answer = None
        self._answer = self._worker.answer(request)

    def wait(self, timeout_s: float, wakeup_fd: int | None = None) -> bool:
        """The answer is always there."""
        return True

    def receive(self) -> Answer | None:
        """Return the answer, None while the request is carried out."""
        return self._answer

    def leave(self, timeout_s: float) -> str:
        """Leave the process group and take the variables back."""
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

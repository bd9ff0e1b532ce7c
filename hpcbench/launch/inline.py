"""The worker inside the MPI process: for a debugger, and for what cannot be isolated.

A crash here ends the job and a hang cannot be survived; the plan and the results say so.
"""

from __future__ import annotations

import os

from hpcbench.launch.channel import Message
from hpcbench.launch.pool import Variables
from hpcbench.measure.progress import SharedProgress


class InlineWorker:
    """Carries a request out when it is sent, in this process."""

    def __init__(self, variables: Variables, progress: SharedProgress) -> None:
        """Import torch into this process and set the variables, which stay set."""
        from hpcbench.worker import Worker

        os.environ.update(dict(variables))
        self.progress = progress
        self._worker = Worker(progress)
        self._answer: Message | None = None

    def send(self, message: Message) -> None:
        """Carry out the request now."""
        self._answer = self._worker.answer(message)

    def wait(self, timeout_s: float) -> bool:
        """The answer is always there."""
        return True

    def receive(self) -> Message | None:
        """Return the answer."""
        return self._answer

    def how_it_ended(self) -> str:
        """Say that it cannot end before this process does."""
        return "inline worker, still running"

    def is_stopped(self) -> bool:
        """Return False: who asks is running."""
        return False

    def stacks(self) -> str:
        """Return nothing: a debugger shows the stacks of this process."""
        return ""

    def last_output(self) -> str:
        """Return nothing: the output went to this process's own."""
        return ""

    def leave(self, timeout_s: float) -> None:
        """Leave the process group."""
        self._worker.leave()

    def kill(self) -> None:
        """Leave the process group without the others, so that a new one can be joined."""
        self._worker.abandon()

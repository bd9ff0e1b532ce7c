"""Everything that a supervisor works from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from hpcbench.launch.attempt import Attempt
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.plan.case import Case
from hpcbench.trace.journal import Journal

CaseReport = Callable[[Case, str, str, float, int, int], None]
"""Called after each case with its status, reason, seconds, launch and pass."""


@dataclass(frozen=True, slots=True)
class Recorder:
    """Where the results of cases go: this rank's journal, and rank 0's progress lines.

    ``folder`` is that of the results, for messages.
    """

    journal: Journal
    report: CaseReport
    folder: Path


@dataclass(frozen=True, slots=True)
class SupervisorContext:
    """Everything that a supervisor works from; ``canary`` is None if there is none."""

    attempt: Attempt
    recorder: Recorder
    clocks: Clocks
    stop: StopRequests
    rendezvous: Rendezvous
    canary: Case | None

    @property
    def comm(self) -> Communicator:
        """Return the communicator of all ranks."""
        return self.attempt.comm

    @property
    def journal(self) -> Journal:
        """Return this rank's journal."""
        return self.recorder.journal

    @property
    def inline(self) -> bool:
        """Return whether all workers run in the ranks' own processes."""
        return self.attempt.config.launch.inline

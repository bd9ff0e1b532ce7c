"""Everything that a supervisor works from."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hpcbench.config.schema import Fault
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.probe import Resolution
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.workers.worker_group import Rendezvous
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.history import History
from hpcbench.trace.journal import Journal

Report = Callable[[Case, str, str, float, int, int], None]
"""Called after each case with its status, reason, seconds, launch and pass."""


@dataclass(frozen=True, slots=True)
class Job:
    """Everything a supervisor works from. ``socket_env`` goes to every worker.

    ``faults`` are the config's faults, ``required`` backends whose skips fail;
    ``history`` is what earlier attempts have done; ``folder`` is that of the results;
    ``hosts`` are each rank's as messages name it;
    ``budget_s`` is for the timed loop of one run of a case; ``canary`` is None if there is none.
    """

    comm: Communicator
    plan: Plan
    resolution: Resolution
    required: frozenset[str]
    rendezvous: Rendezvous
    socket_env: Mapping[str, str]
    faults: Sequence[Fault]
    inline: bool
    stop: StopRequests
    journal: Journal
    report: Report
    clocks: Clocks
    budget_s: float
    canary: Case | None
    history: History
    folder: Path
    hosts: tuple[str, ...]

"""The measuring stage of a run: this rank's journal from its header to its last note."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator

from hpcbench.launch.attempt import Attempt
from hpcbench.launch.clocks.synchronization import Clocks
from hpcbench.launch.context import Recorder, SupervisorContext
from hpcbench.launch.folders.rank_folders import RankFolders
from hpcbench.launch.ranks.agreement import on_all
from hpcbench.launch.ranks.stop_requests import StopRequests
from hpcbench.launch.setup import header, job_canary, job_rendezvous
from hpcbench.launch.supervisor import supervise
from hpcbench.launch.workers.worker_pool import WorkerPool
from hpcbench.measure.noise import measure_noise
from hpcbench.trace.journal import Journal, journal_path
from hpcbench.trace.schema import NOISE_NOTE
from hpcbench.trace.source import APART_NOTE, END_NOTE, RESUMED_NOTE, STOPPED_NOTE


@contextlib.contextmanager
def open_journal(attempt: Attempt, folders: RankFolders) -> Iterator[Journal]:
    """Give this rank's journal, opened on all ranks or on none. Collective."""
    opened: list[Journal] = []
    rank = attempt.comm.rank
    who, plan = header(attempt, folders.own.run_id), attempt.plan if rank == 0 else None
    on_all(attempt.comm, "opening the trace", lambda: opened.append(
        Journal.create(journal_path(folders.own.traces, rank), who, plan)))
    with opened[0] as journal:
        if rank == 0:
            _note_beginning(attempt, folders, journal)
        yield journal


def _note_beginning(attempt: Attempt, folders: RankFolders, journal: Journal) -> None:
    """Note which ranks write elsewhere, and what the attempt goes on with."""
    if folders.apart:
        journal.note(APART_NOTE, {str(rank): place for rank, place in folders.apart.items()})
    history = attempt.history
    if history.attempt:
        left = len(attempt.runs_left())
        journal.note(RESUMED_NOTE, {
            "attempt": history.attempt, "left": left, "changes": list(history.changes),
            "planned": left + len(history.finished), "earlier_plans": list(history.plans)})


def measure(
    attempt: Attempt, recorder: Recorder, pool: WorkerPool, stop: StopRequests,
) -> None:
    """Supervise the whole sweep; this rank's journal is complete when this returns."""
    journal, config = recorder.journal, attempt.config.measure
    if config.noise_check_s:  # all ranks look at the same time, as they measure
        attempt.comm.barrier()
        journal.note(NOISE_NOTE, measure_noise(config.noise_check_s))
    clocks = Clocks(time.perf_counter_ns, config.clock_sync_s, journal.note)
    clocks.sync(attempt.comm)
    reason = supervise(SupervisorContext(
        attempt, recorder, clocks, stop, job_rendezvous(attempt), job_canary(attempt)), pool)
    if reason:
        journal.note(STOPPED_NOTE, {"signal": reason})
    journal.note(END_NOTE, {})

"""The end of a job whose inline case does not end: its verdict on disk, then MPI_Abort.

A case of backend mpi runs in the MPI process itself, so nothing outside can end it alone. Python
runs no signal handler while the main thread sits in MPI, but it does run other threads.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from hpcbench.errors import ExitCode, RankLostError
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.verdicts.consultation import EXCHANGE_S
from hpcbench.launch.verdicts.verdict import Evidence, Outcome
from hpcbench.launch.workers.messages import FailureAnswer
from hpcbench.launch.workers.worker_process import WorkerHandle
from hpcbench.masking import masked

_LAST_WORD_S = 45.0


class Watchdog:
    """Calls ``act`` on a thread of its own if the block takes longer than ``timeout_s``.

    ``act`` is given the seconds by which it is late: many if the whole process was stopped. It
    must end the process. From the moment it is called the block cannot be left, so that never two
    threads write to one journal.
    """

    def __init__(self, timeout_s: float, act: Callable[[float], None]) -> None:
        self._timeout_s = timeout_s
        self._act = act
        self._left = threading.Event()
        self._one = threading.Lock()

    def __enter__(self) -> None:
        threading.Thread(target=self._watch, name="watchdog", daemon=True).start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._one:
            self._left.set()

    def _watch(self) -> None:
        deadline = time.monotonic() + self._timeout_s
        if self._left.wait(self._timeout_s):
            return
        with self._one:
            if not self._left.is_set():
                self._act(time.monotonic() - deadline)


def inline_evidence(rank: int, worker: WorkerHandle) -> Evidence:
    """Return what an inline worker has answered, or how far its progress word shows it to be."""
    answer, progress = worker.receive(), worker.progress
    outcome, cause = Outcome.OK, "its part was done"
    if answer is None:
        outcome = Outcome.STUCK
        cause = (f"last seen in phase {progress.phase.name.lower()} of iteration "
                 f"{progress.iteration}")
    elif isinstance(answer, FailureAnswer):
        outcome, cause = answer.outcome, masked(answer.cause, os.environ)
    return Evidence(
        rank, outcome, cause, progress.iteration, int(progress.phase), expired=True,
        stray=progress.stray_operation, stray_iteration=progress.stray_iteration)


def force_exit_later() -> None:
    """End this process in a while, should MPI neither answer nor abort."""
    timer = threading.Timer(_LAST_WORD_S, os._exit, (int(ExitCode.INCOMPLETE),))
    timer.daemon = True
    timer.start()


def end_job(comm: Communicator, record: Callable[[], None], message: str) -> None:
    """Record, let the other ranks' watchdogs record, say why (or ""), end every rank with 3."""
    code = int(ExitCode.INCOMPLETE)
    _skip_exit_handlers()
    try:
        record()
        if message:
            print(message, file=sys.stderr, flush=True)
        with suppress(RankLostError):
            comm.barrier(timeout_s=EXCHANGE_S)
    finally:
        comm.abort(code)
        os._exit(code)


def _skip_exit_handlers() -> None:
    """Have exit(3) end the process at once, as the handler that runs first.

    MPI_Abort calls exit(3), whose other handlers would take libraries down under the main thread:
    a segmentation fault instead of the exit code.
    """
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # glibc's: hands the exit code on
        libc.on_exit(libc._exit, None)

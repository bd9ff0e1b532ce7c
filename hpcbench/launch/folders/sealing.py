"""The end of a run's traces: each rank seals its journal, and rank 0 gets what it does not see."""

from __future__ import annotations

import contextlib

from hpcbench.launch.folders.rank_folders import RankFolders, leave
from hpcbench.launch.folders.run_folder import RunFolder
from hpcbench.launch.folders.trace_delivery import deliver
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.trace.attempts import attempt_folders
from hpcbench.trace.journal import journal_path
from hpcbench.trace.sealed import seal, trace_path
from hpcbench.trace.source import UnreadableTrace


def seal_traces(folder: RunFolder, rank: int, *, measured: bool) -> None:
    """Turn this rank's journal into its trace; of earlier attempts, too, that had no time to."""
    for traces in attempt_folders(folder.path / "traces"):
        journal, trace = journal_path(traces, rank), trace_path(traces, rank)
        earlier = contextlib.suppress(UnreadableTrace) if traces != folder.traces else (
            contextlib.nullcontext())  # of others the reducer says what is wrong with them
        with earlier:
            if journal.is_file() or (measured and traces == folder.traces):
                seal(journal, trace)
                journal.unlink()


def collect_traces(comm: Communicator, folders: RankFolders) -> list[str]:
    """Send rank 0 the traces of the ranks that do not see its folder; return there what is missing.

    Collective.
    """
    trace = trace_path(folders.own.traces, comm.rank)
    mine = {trace.name: trace} if trace.is_file() else {}
    problems = deliver(comm, mine, folders.apart, folders.folder.traces)
    if comm.rank in folders.apart:
        leave(folders.own)
    return problems

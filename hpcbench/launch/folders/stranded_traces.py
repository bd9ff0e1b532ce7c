"""Traces that an earlier attempt's ranks left on disks of their own, because it was killed.

Before a run goes on, rank 0 gets them, so that it knows what is done. Only the ranks of this
job can look. A trace on any other node stays there, and its runs are repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from hpcbench.errors import UsageError
from hpcbench.launch.folders.rank_folders import APART, SeparateFolder, leave, temporary_folder
from hpcbench.launch.folders.run_folder import RunFolder
from hpcbench.launch.folders.trace_delivery import deliver
from hpcbench.launch.ranks.agreement import on_all
from hpcbench.launch.ranks.session import Session
from hpcbench.trace.attempts import attempt_folders, attempt_of
from hpcbench.trace.journal import is_being_written, read_journal
from hpcbench.trace.sealed import open_trace, seal
from hpcbench.trace.source import UnreadableTrace


def fetch_stranded_traces(session: Session, run_path: str, run_id: str) -> list[str]:
    """Send rank 0 what other ranks find of a run; return there what did not arrive.

    ``run_path`` is the run's folder on rank 0. Collective.
    Raises AgreedError if a job is still writing one of the traces.
    """
    comm, topology = session
    path = Path(run_path)
    stranded = [] if comm.rank == 0 else _folders(path, run_id, topology.hostname)
    keys = [[topology.node, folder.stat().st_dev, folder.stat().st_ino] for folder in stranded]
    listed = comm.allgather([topology.hostname, [str(folder) for folder in stranded], keys])
    higher = [key for _, _, keys_of in listed[comm.rank + 1:] for key in keys_of]
    mine = [folder for folder, key in zip(stranded, keys, strict=True) if key not in higher]
    sealed = on_all(comm, "looking for traces of earlier attempts", lambda: [
        [name, str(file)] for name, file in _sealed(mine, run_id).items()])
    senders = {rank: SeparateFolder(listed[rank][0], ", ".join(listed[rank][1]))
               for rank, files in enumerate(sealed) if files}
    files = {name: Path(file) for name, file in sealed[comm.rank]}
    problems = deliver(comm, files, senders, path / "traces")
    for folder in mine:
        for traces in reversed(attempt_folders(folder / "traces")):
            leave(RunFolder(folder, run_id, attempt_of(traces)))
    return problems


def _folders(path: Path, run_id: str, hostname: str) -> list[Path]:
    """Return what ranks of the run that did not see ``path`` have made on this node.

    Not what another host's have: nodes may share the folder, and each sends its own.
    """
    beside = path.with_name(f"{path.name}{APART}{hostname}")
    return [folder for folder in (beside, temporary_folder(run_id)) if folder.is_dir()]


def _sealed(folders: Iterable[Path], run_id: str) -> Mapping[str, Path]:
    """Seal what is not yet, and return the traces of the run by their names below ``traces``."""
    by_name: dict[str, Path] = {}
    for folder in folders:
        for traces in attempt_folders(folder / "traces"):
            for journal in sorted(traces.glob("rank*.journal")):
                _seal(journal, run_id)
            below = traces.relative_to(folder / "traces")
            by_name |= {str(below / trace.name): trace for trace in _of_run(
                sorted(traces.glob("rank*.h5")), run_id)}
    return by_name


def _seal(journal: Path, run_id: str) -> None:
    if is_being_written(journal):
        raise UsageError(f"{journal}: a job is still writing there; end it first, or give another "
                         "folder")
    with contextlib.suppress(UnreadableTrace):  # it stays where it is
        if read_journal(journal).header.run_id == run_id:
            seal(journal, journal.with_suffix(".h5"))
            journal.unlink(missing_ok=True)


def _of_run(traces: Sequence[Path], run_id: str) -> list[Path]:
    matches = []
    for trace in traces:
        with contextlib.suppress(UnreadableTrace):
            if open_trace(trace).header.run_id == run_id:
                matches.append(trace)
    return matches

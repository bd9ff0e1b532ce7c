"""The end of a run's traces: sealed by each rank, and sent to rank 0 if it does not see them.

Before a run goes on, rank 0 gets what an earlier attempt has left on other ranks' disks, too.
One rank sends at a time, in pieces. Neither side holds more than one piece. A file that did not
arrive whole stays where it is.
"""

from __future__ import annotations

import contextlib
import json
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, BinaryIO

from hpcbench.errors import FileError, RankLostError, UsageError
from hpcbench.launch.folders.run_folder import (
    RankFolders,
    RunFolder,
    SeparateFolder,
    leave,
    separate_folders,
)
from hpcbench.launch.ranks.agreement import on_all
from hpcbench.launch.ranks.communicator import Communicator
from hpcbench.launch.ranks.session import Session
from hpcbench.trace.attempts import attempt_folders, attempt_of
from hpcbench.trace.files import whole_file
from hpcbench.trace.journal import is_being_written, journal_path, read_journal
from hpcbench.trace.sealed import open_trace, seal, trace_path
from hpcbench.trace.source import UnreadableTrace

PIECE_BYTES = 4 << 20
_ANSWER_S = 120.0


def seal_traces(folder: RunFolder, rank: int, *, measured: bool) -> None:
    """Turn this rank's journal into its trace; of earlier attempts, too, that had no time to."""
    for traces in attempt_folders(folder.path / "traces"):
        journal, trace = journal_path(traces, rank), trace_path(traces, rank)
        earlier = () if traces == folder.traces else (UnreadableTrace,)
        with contextlib.suppress(*earlier):  # the reducer says what is wrong with those
            if journal.is_file() or (measured and traces == folder.traces):
                seal(journal, trace)
                with contextlib.suppress(OSError):  # readers take the trace where both are there
                    journal.unlink()


def collect_traces(comm: Communicator, folders: RankFolders) -> list[str]:
    """Send rank 0 the traces that it does not see; return there what is missing. Collective."""
    trace = trace_path(folders.own.traces, comm.rank)
    mine = {trace.name: trace} if trace.is_file() else {}
    problems = deliver(comm, mine, folders.apart, folders.folder.traces)
    if comm.rank in folders.apart:
        leave(folders.own)
    return problems


def deliver(
    comm: Communicator, files: Mapping[str, Path], apart: Mapping[int, SeparateFolder],
    traces: Path,
) -> list[str]:
    """Send the ``files`` of every rank in ``apart`` to rank 0; return there what did not arrive.

    They get their names, the keys, in ``traces``, and the sender's are deleted. Collective.
    """
    if comm.rank == 0:
        return [problem for rank, place in apart.items()
                for problem in _receive_all(comm, rank, place, traces)]
    if comm.rank in apart:
        _send_all(comm, files)
    return []


def _send_all(comm: Communicator, files: Mapping[str, Path]) -> None:
    """Wait for rank 0's word, which may take as long as all other ranks, then send."""
    comm.receive(0)
    for name, path in files.items():
        if _send(comm, name, path):
            with contextlib.suppress(OSError):
                path.unlink()
    comm.send(_json({}), 0, _ANSWER_S)


def _send(comm: Communicator, name: str, path: Path) -> bool:
    """Send one file; return whether rank 0 has it."""
    header = {"name": name, "path": str(path), **_described(path)}
    comm.send(_json(header), 0, _ANSWER_S)
    if "error" not in header:
        with contextlib.suppress(OSError):  # rank 0 finds out that something is missing
            for piece in _pieces(path):
                comm.send(piece, 0, _ANSWER_S)
        comm.send(b"", 0, _ANSWER_S)
    return bool(json.loads(comm.receive(0, _ANSWER_S)))


def _described(path: Path) -> dict[str, Any]:
    """Return length and CRC-32 of a file, or why it cannot be read."""
    try:
        length, crc = _measured(_pieces(path))
    except OSError as error:
        return {"error": error.strerror or str(error)}
    return {"bytes": length, "crc32": crc}


def _measured(pieces: Iterable[bytes]) -> tuple[int, int]:
    length = crc = 0
    for piece in pieces:
        length, crc = length + len(piece), zlib.crc32(piece, crc)
    return length, crc


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        yield from iter(lambda: stream.read(PIECE_BYTES), b"")


def _receive_all(
    comm: Communicator, rank: int, place: SeparateFolder, traces: Path,
) -> Iterator[str]:
    """Take what one rank has to send; yield what is wrong with it."""
    try:
        comm.send(b"", rank, _ANSWER_S)
        while header := json.loads(comm.receive(rank, _ANSWER_S)):
            problem = _received(comm, rank, header, traces / header["name"])
            comm.send(_json(not problem), rank, _ANSWER_S)
            if problem:
                yield (f"rank {rank}: {header['name']} is left on {place.host} as "
                       f"{header['path']}: {problem}")
    except RankLostError as error:
        raise RankLostError(f"{error}; its trace is on {place.host} in {place.path}") from error


def _received(
    comm: Communicator, rank: int, header: Mapping[str, Any], target: Path,
) -> str:
    """Write one file, whole or not at all; return what is wrong, or ""."""
    if "error" in header:
        return str(header["error"])
    pieces = iter(lambda: comm.receive(rank, _ANSWER_S), b"")
    try:
        if target.exists() and {**header, **_described(target)} != header:
            raise FileError(f"{target}: is there already, with other contents")
        with whole_file(target, make_folder=True) as part, part.open("wb") as stream:
            if _measured(_written(stream, pieces)) != (header["bytes"], header["crc32"]):
                raise FileError(f"{target}: it did not arrive as it was sent")
    except FileError as error:
        for _ in pieces:  # the sender cannot know, and has to get rid of the rest
            pass
        return str(error)
    return ""


def _written(stream: BinaryIO, pieces: Iterable[bytes]) -> Iterator[bytes]:
    for piece in pieces:
        stream.write(piece)
        yield piece


def _json(value: object) -> bytes:
    return json.dumps(value).encode()


def fetch_stranded_traces(session: Session, run_path: str, run_id: str) -> list[str]:
    """Send rank 0 what other ranks find of a run; return there what did not arrive. Collective.

    Ranks of a killed attempt left traces on disks of their own; ``run_path`` is the run's folder on
    rank 0. Only ranks of this job can look: a trace on any other node stays there, and its runs are
    repeated. Raises AgreedError if a job is still writing one of the traces.
    """
    comm, topology = session
    path = Path(run_path)
    own = separate_folders(path, run_id, topology.hostname) if comm.rank else ()
    stranded = [folder for folder in own if folder.is_dir()]  # each host sends what is its own
    keys = [[topology.node, folder.stat().st_dev, folder.stat().st_ino] for folder in stranded]
    listed = comm.allgather([topology.hostname, [str(folder) for folder in stranded], keys])
    higher = [key for _, _, keys_of in listed[comm.rank + 1:] for key in keys_of]
    mine = [folder for folder, key in zip(stranded, keys, strict=True) if key not in higher]
    sealed = on_all(comm, "looking for traces of earlier attempts", lambda: [
        [name, str(file)] for name, file in _sealed_below(mine, run_id).items()])
    senders = {rank: SeparateFolder(listed[rank][0], ", ".join(listed[rank][1]))
               for rank, files in enumerate(sealed) if files}
    files = {name: Path(file) for name, file in sealed[comm.rank]}
    problems = deliver(comm, files, senders, path / "traces")
    for folder in mine:
        for traces in reversed(attempt_folders(folder / "traces")):
            leave(RunFolder(folder, run_id, attempt_of(traces)))
    return problems


def _sealed_below(folders: Iterable[Path], run_id: str) -> Mapping[str, Path]:
    """Seal what is not yet, and return the traces of the run by their names below ``traces``."""
    by_name: dict[str, Path] = {}
    for folder in folders:
        for traces in attempt_folders(folder / "traces"):
            for journal in sorted(traces.glob("rank*.journal")):
                _seal_stranded(journal, run_id)
            below = traces.relative_to(folder / "traces")
            for trace in sorted(traces.glob("rank*.h5")):
                with contextlib.suppress(UnreadableTrace):
                    if open_trace(trace).header.run_id == run_id:
                        by_name[str(below / trace.name)] = trace
    return by_name


def _seal_stranded(journal: Path, run_id: str) -> None:
    if is_being_written(journal):
        raise UsageError(f"{journal}: a job is still writing there; end it first, or give another "
                         "folder")
    with contextlib.suppress(UnreadableTrace):  # it stays where it is
        if read_journal(journal).header.run_id == run_id:
            seal(journal, journal.with_suffix(".h5"))
            with contextlib.suppress(OSError):
                journal.unlink()

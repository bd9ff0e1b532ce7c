"""The folder of a run, where each rank writes, and how traces come to rank 0 at the end.

A resumed run first fetches what an earlier attempt left on other ranks' disks. One rank sends at a
time, in pieces; a file that did not arrive whole stays where it is."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import secrets
import tempfile
import time
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

from hpcbench.errors import FileError, RankLostError, TraceError, UsageError
from hpcbench.launch.communicator import Communicator
from hpcbench.launch.session import RankIdentity, Session, from_root, on_all, on_root
from hpcbench.plain import Plain
from hpcbench.plan.case import Plan, plan_to_json
from hpcbench.plan.order import History
from hpcbench.records import dataclass
from hpcbench.texts import path_of, say, to_json
from hpcbench.trace import container
from hpcbench.trace.journal import is_being_written, journal_path, read_journal
from hpcbench.trace.sealed import open_trace, seal, trace_path
from hpcbench.trace.source import UnreadableTrace, was_cut_short
from hpcbench.units import by_value, rank_list

if TYPE_CHECKING:
    from hpcbench.launch.attempt import RunAttempt


VISIBLE_WITHIN_S = 2.0
"""How long a rank waits to see a file of rank 0: NFS clients may be late to see it."""
_LONGEST_PAUSE_S = 0.2
_MOST_LINES = 8


@dataclass(frozen=True, slots=True)
class RunFolder:
    """``path`` holds config.json, plan.json, traces/, later results; ``attempt`` is this job.

    ``notes``: refusals of its file system that a run can do without."""

    path: Path
    run_id: str
    attempt: int = 0
    notes: tuple[str, ...] = ()

    @property
    def traces(self) -> Path:
        return container.attempt_folder(self.path / "traces", self.attempt)


_RUN_FOLDER: Plain[RunFolder] = Plain(RunFolder)


def create_run_folder(plan: Plan, parent: Path, path: Path | None = None) -> RunFolder:
    """Make ``path`` or ``<parent>/<name>-<time>-<id>``, and point ``latest`` to it. Raises
    FileError."""
    run_id = _new_run_id()
    folder = RunFolder(path or parent / f"{plan.name}-{run_id}", run_id)
    with _being_made(folder.path):
        folder.traces.mkdir(parents=True)
        for name, text in _plan_files(plan).items():
            (folder.path / name).write_text(text)
        before = folder.path.parent / container.LATEST
        stays = plan.world_size == 1 and (container.planned_ranks(before) or 1) > 1
        notes = convenience_notes(folder.path, is_named=path is not None, stays=stays)
    return replace(folder, notes=notes)


@contextlib.contextmanager
def _being_made(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise FileError(f"{path}: cannot be made: {error.strerror}; choose another folder "
                        "with -o DIR (output.folder)") from error


def _new_run_id() -> str:
    return f"{time.strftime('%Y%m%d-%H%M%S')}-{secrets.token_hex(3)}"


def create_suite_folder(
    parent: Path, configs: Mapping[str, Mapping[str, Any]],
) -> RunFolder:
    """Make ``<parent>/suite-<time>-<id>`` with each member's checked configuration. Raises
    FileError."""
    run_id = _new_run_id()
    path = parent / f"suite-{run_id}"
    with _being_made(path):
        sweeps_folder(path).mkdir(parents=True)
        for name, config in configs.items():
            (sweeps_folder(path) / f"{name}.json").write_text(to_json(config, indent=1) + "\n")
        notes = convenience_notes(path)
    return RunFolder(path, run_id, notes=notes)


def sweeps_folder(suite: Path) -> Path:
    return suite / "sweeps"


def resume_folder(path: Path, plan: Plan, history: History) -> RunFolder:
    """Make a place for the next attempt in the folder of a run. Raises FileError, also if another
    job has just made it."""
    folder = RunFolder(path, history.run_id, history.attempt)
    try:
        folder.traces.mkdir(parents=True)
        if plan.plan_hash not in (path / container.PLAN_FILE).read_text():
            for name in ("config", "plan"):
                kept = path / f"{name}-before-attempt{history.attempt}.json"
                kept.write_bytes((path / f"{name}.json").read_bytes())
            for name, text in _plan_files(plan).items():
                with container.whole_file(path / name) as part:
                    part.write_text(text)
        notes = convenience_notes(path, is_named=True)
    except FileExistsError as error:
        raise FileError(f"{folder.traces}: another job resumes this run; let it end") from error
    except OSError as error:
        raise FileError(f"{path}: cannot be resumed: {error.strerror}; fix it, or choose another "
                        "folder") from error
    return replace(folder, notes=notes)


def _plan_files(plan: Plan) -> dict[str, str]:
    return {"config.json": to_json(plan.config, indent=1) + "\n",
            container.PLAN_FILE: to_json(plan_to_json(plan)) + "\n"}


def point_latest_to(path: Path) -> None:
    """Replace the link in one step; a file of that name that is no link is left alone.

    In a suite there is none: it would stand among the members. Process ids are not unique in
    containers, so the temporary name is random."""
    latest = path.parent / container.LATEST
    if latest.exists() and not latest.is_symlink() or container.is_suite(path.parent):
        return
    beside = path.parent / f".latest-{secrets.token_hex(6)}"
    try:
        beside.symlink_to(path.name)
        beside.replace(latest)
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


def convenience_notes(
    path: Path, *, is_named: bool = False, stays: bool = False,
) -> tuple[str, ...]:
    """Point ``latest`` here and sync the folder; return a note on each that is refused.

    A folder that the user named (``is_named``) needs no ``latest``. It ``stays`` where a run of one
    rank, whose mpirun was forgotten, would take the place of a run of several. Raises OSError where
    the disk fails."""
    notes = [f"{path.parent / container.LATEST} stays a run of several ranks"] if stays else []
    try:
        if not stays:
            point_latest_to(path)
    except OSError as error:
        if not is_named:
            notes.append(f"{path.parent / 'latest'} cannot point to this folder: {error.strerror}; "
                         "name the folder itself")
    # a suite has its own note
    if not container.is_suite(path.parent) and not container.sync_folder(path):
        notes.append(f"the file system of {path} does not sync folders: records are on disk when a "
                     "case is acknowledged, but a machine that crashes then may lose a new file's "
                     "name")
    return tuple(notes)


class SeparateFolder(NamedTuple):
    """A folder of a rank that does not see rank 0's."""

    host: str
    path: str


@dataclass(frozen=True, slots=True)
class RankFolders:
    """``folder`` is rank 0's; this rank writes to ``own``; ``separate``: where ranks write that do
    not see it."""

    folder: RunFolder
    own: RunFolder
    separate: Mapping[int, SeparateFolder]


def open_folders(attempt: RunAttempt) -> RankFolders:
    """Return the folder of the run, and where each rank writes its trace; collective.

    Rank 0 leaves a file with a new name in the folder; the others try to see it. Raises AgreedError
    if a rank can write nowhere."""
    comm, topology = attempt.comm, attempt.topology
    folder = from_root(comm, _RUN_FOLDER, lambda: _run_folder(attempt))
    token = folder.path / on_root(comm, lambda: _leave_token(folder.path))
    try:
        places = on_all(comm, "finding a place for the trace", lambda: (
            None if sees(token) else _own_place(folder, topology)))
    finally:
        if comm.rank == 0:
            with contextlib.suppress(OSError):
                token.unlink()
    separate = {rank: SeparateFolder(*place) for rank, place in enumerate(places) if place}
    mine = separate.get(comm.rank)
    own = RunFolder(Path(mine.path), folder.run_id, folder.attempt) if mine else folder
    return RankFolders(folder, own, separate)


def _run_folder(attempt: RunAttempt) -> RunFolder:
    """Return the folder of the run, made or taken up if there is anything to run (rank 0)."""
    path, history = attempt.folder, attempt.history
    if path is None or not history.attempt:
        parent = path_of(attempt.config.output.folder).absolute()
        return create_run_folder(attempt.plan, parent, path)
    if attempt.is_done():
        say(f"{path}: nothing is left to run")
        return RunFolder(path, history.run_id, history.attempt - 1)
    return resume_folder(path, attempt.plan, history)


def _leave_token(path: Path) -> str:
    token = path / f".seen-{secrets.token_hex(8)}"
    try:
        token.touch(exist_ok=False)
    except OSError as error:
        raise FileError(f"{token}: cannot be written: {error.strerror}") from error
    return token.name


def sees(token: Path, limit_s: float = VISIBLE_WITHIN_S) -> bool:
    """Return whether the file is there within ``limit_s``.

    Opening its folders makes an NFS client query the server anew; a query of the name need not."""
    deadline, pause_s = time.monotonic() + limit_s, 0.01
    while True:
        for folder in (token.parent.parent, token.parent):
            with contextlib.suppress(OSError):
                os.close(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC))
        if os.path.exists(token):  # noqa: PTH110  (Path.exists raises without permission)
            return True
        if time.monotonic() >= deadline:
            return False
        time.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


def separate_folders(path: Path, run_id: str, hostname: str) -> Iterator[Path]:
    """Yield where a host may write that does not see ``path``: beside it, or a temporary folder.

    Raises FileNotFoundError at the second where no temporary folder can be written."""
    yield path.with_name(f"{path.name}.on-{hostname}")
    yield Path(tempfile.gettempdir()) / f"hpcbench-{run_id}"


def _own_place(folder: RunFolder, topology: RankIdentity) -> list[str]:
    path, tried = separate_folder(folder, topology.hostname, topology.rank)
    if path is not None:
        return [topology.hostname, str(path)]
    raise FileError(f"{topology.hostname} does not see {folder.path} of rank 0, and has no place "
                    f"of its own ({'; '.join(tried)}): give a folder that all nodes see with "
                    "-o DIR (output.folder), or set TMPDIR to one that can be written")


def separate_folder(folder: RunFolder, hostname: str, rank: int) -> tuple[Path | None, list[str]]:
    """Return the first of `separate_folders` that the rank can write to, or None, and why not the
    others.

    Never ``folder``'s own path: the rank might see it only later. Beside it only if no more than
    its parent is missing: a longer path is another machine's, or not mounted. Makes the traces'
    folder."""
    tried: list[str] = []
    there = os.path.isdir(folder.path.parent.parent)  # noqa: PTH112  (Path.is_dir raises, too)
    places = separate_folders(folder.path, folder.run_id, hostname)
    for path in itertools.islice(places, 0 if there else 1, None):
        traces = container.attempt_folder(path / "traces", folder.attempt)
        try:
            traces.mkdir(parents=True, exist_ok=True)
            if not os.access(traces, os.W_OK):
                raise PermissionError(0, "cannot be written")
            if journal_path(traces, rank).exists() or trace_path(traces, rank).exists():
                raise FileExistsError(0, "holds a trace of this rank")
        except OSError as error:
            tried.append(f"{traces}: {error.strerror}")
        else:
            return path, tried
    return None, tried


def separate_folder_lines(folders: RankFolders) -> list[str]:
    """Return the lines on the ranks that do not see the folder, and where they write."""
    lines = [f"  rank {rank_list(ranks)} on {place.host}: {place.path}"
             for place, ranks in by_value(folders.separate).items()]
    shown = lines[:_MOST_LINES] + ([f"  and on {len(lines) - _MOST_LINES} more hosts"]
                                   if len(lines) > _MOST_LINES else [])
    return [f"{len(folders.separate)} of the ranks do not see this folder: they write to disks of "
            "their own, and send rank 0 their traces at the end", *shown] if lines else []


def leave(own: RunFolder) -> None:
    for path in (own.traces, own.path / "traces", own.path):
        with contextlib.suppress(OSError):
            path.rmdir()


PIECE_BYTES = 4 << 20
_ANSWER_S = 120.0


def seal_traces(folder: RunFolder, rank: int, *, measured: bool) -> None:
    """Turn this rank's journals into traces, those of earlier attempts included."""
    for traces in container.attempt_folders(folder.path / "traces"):
        journal, trace = journal_path(traces, rank), trace_path(traces, rank)
        earlier = () if traces == folder.traces else (UnreadableTrace,)
        with contextlib.suppress(*earlier):  # the reducer reports what is wrong with those
            if journal.is_file() or (measured and traces == folder.traces):
                seal(journal, trace)
                with contextlib.suppress(OSError):  # readers take the trace where both are there
                    journal.unlink()


def lacking_traces(folders: RankFolders, n_ranks: int) -> str:
    """Return in words which ranks' records cannot be read back whole at this moment, "" if all can.

    Those that ranks write elsewhere are not looked for."""
    traces = folders.folder.traces
    if not traces.is_dir():
        return f"{traces} was moved or removed: give the new place of the folder"
    bad = [rank for rank in range(n_ranks)
           if rank not in folders.separate and not _is_whole(traces, rank)]
    return f"The records of rank {rank_list(bad)} cannot be read back whole" if bad else ""


def _is_whole(traces: Path, rank: int) -> bool:
    """Return whether a rank's sealed trace, or else its journal, can be read and has its end."""
    try:
        sealed = trace_path(traces, rank)
        trace = open_trace(sealed) if sealed.exists() else read_journal(journal_path(traces, rank))
    except (OSError, TraceError):
        return False
    return not was_cut_short(trace)


def collect_traces(comm: Communicator, folders: RankFolders) -> list[str]:
    """Send rank 0 the traces that it does not see; return there what is missing. Collective."""
    trace = trace_path(folders.own.traces, comm.rank)
    mine = {trace.name: trace} if trace.is_file() else {}
    problems = send_to_root(comm, mine, folders.separate, folders.folder.traces)
    if comm.rank in folders.separate:
        leave(folders.own)
    return problems


def send_to_root(
    comm: Communicator, files: Mapping[str, Path], separate: Mapping[int, SeparateFolder],
    traces: Path,
) -> list[str]:
    """Send the ``files`` (name -> path) of every rank in ``separate`` to ``traces`` on rank 0;
    delete them here.

    Returns on rank 0 what did not arrive. Collective."""
    if comm.rank == 0:
        return [problem for rank, place in separate.items()
                for problem in _receive_all(comm, rank, place, traces)]
    if comm.rank in separate:
        _send_all(comm, files)
    return []


def _send_all(comm: Communicator, files: Mapping[str, Path]) -> None:
    """Wait for rank 0's turn, which may take as long as all other ranks, then send."""
    comm.receive(0)
    for name, path in files.items():
        if _send(comm, name, path):
            with contextlib.suppress(OSError):
                path.unlink()
    comm.send(_json({}), 0, _ANSWER_S)


def _send(comm: Communicator, name: str, path: Path) -> bool:
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
    """Receive one rank's files; yield a line for each that did not arrive."""
    try:
        comm.send(b"", rank, _ANSWER_S)
        while header := json.loads(comm.receive(rank, _ANSWER_S)):
            problem = _received(comm, rank, header, traces / header["name"])
            comm.send(_json(not problem), rank, _ANSWER_S)
            if problem:
                yield (f"rank {rank}: {header['name']} did not arrive from "
                       f"{header['path']} on {place.host}: {problem}")
    except RankLostError as error:
        raise RankLostError(f"{error}; it wrote its trace on {place.host} in {place.path}"
                            ) from error


def _received(
    comm: Communicator, rank: int, header: Mapping[str, Any], target: Path,
) -> str:
    """Write one file, whole or not at all; return the problem, or ""."""
    if "error" in header:
        return str(header["error"])
    pieces = iter(lambda: comm.receive(rank, _ANSWER_S), b"")
    try:
        if target.exists() and {**header, **_described(target)} != header:
            raise FileError(f"{target}: is there already, with other contents")
        with container.whole_file(target, make_folder=True) as part, part.open("wb") as stream:
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
    """Send rank 0 the traces of a run that other ranks find on their disks. Collective.

    Returns on rank 0 what did not arrive. Ranks of a killed attempt left them; ``run_path`` is rank
    0's folder. A trace on a node without a rank of this job stays there, and its runs are repeated.
    Raises AgreedError if a job is still writing one."""
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
    problems = send_to_root(comm, files, senders, path / "traces")
    for folder in mine:
        for traces in reversed(container.attempt_folders(folder / "traces")):
            leave(RunFolder(folder, run_id, container.attempt_of(traces)))
    return problems


def _sealed_below(folders: Iterable[Path], run_id: str) -> Mapping[str, Path]:
    """Seal all journals, and return the traces of the run by their names below ``traces``."""
    by_name: dict[str, Path] = {}
    for folder in folders:
        for traces in container.attempt_folders(folder / "traces"):
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

"""The live record of one rank: an append-only file that loses nothing it has acknowledged.

HDF5 cannot be that file: killed while writing it leaves files that do not open, and a full disk
crashes the process inside the library (docs/architecture.md). `seal` turns a finished journal
into HDF5.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcbench.errors import FileError, TraceError
from hpcbench.plan.case import Plan, plan_to_json
from hpcbench.trace.arena import Empty, new_array
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.files import open_regular, sync_folder, write_all
from hpcbench.trace.frames import Frame, Kind, frame_at, pack_frame, scan
from hpcbench.trace.schema import SAMPLE_COLUMNS_1, Header, Record, no_samples
from hpcbench.trace.source import (
    ARRAYS,
    CLOCK_NOTE,
    Damage,
    Note,
    TraceSource,
    UnreadableTrace,
    checked_record,
    header_from_json,
    header_to_json,
    plan_from_text,
    record_from_json,
    record_to_json,
)
from hpcbench.trace.telemetry import KEYS, TABLES, TELEMETRY_NOTE, Rows, Told
from hpcbench.trace.typed import check_types, from_values


def journal_path(traces: Path, rank: int) -> Path:
    """Return where a rank's journal lies in the folder of traces."""
    return traces / f"rank{rank:05d}.journal"


_sync = getattr(os, "fdatasync", os.fsync)  # macOS has the latter only


class Journal:
    """An open journal, made by `create`. What `append` and `note` return from is on disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._safe_bytes = 0
        self._n_records = 0

    @classmethod
    def create(cls, path: Path, header: Header, plan: Plan | None = None) -> Journal:
        """Start a new journal. Raises FileError if the file exists or cannot be written."""
        try:
            descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY | os.O_CLOEXEC, 0o666)
        except FileExistsError as error:
            raise FileError(f"{path}: exists already; every launch needs a new folder") from error
        except OSError as error:
            raise FileError(f"{path}: cannot be created: {error.strerror}") from error
        with contextlib.suppress(OSError):  # not every file system has locks
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        journal = cls(path, descriptor)
        try:
            # twice, because without the header all the rest would be nobody's
            opening = [pack_frame(Kind.HEADER, header_to_json(header))] * 2
            opening += [] if plan is None else [pack_frame(Kind.PLAN, plan_to_json(plan))]
            journal._write(b"".join(opening))
            sync_folder(path.parent)
        except BaseException:
            journal.close()
            raise
        return journal

    def append(self, *records: Record) -> None:
        """Put records on disk. Raises FileError, and leaves the earlier ones safe, if it cannot.

        Raises ValueError for a record that does not keep to the schema.
        """
        self._write(b"".join(pack_frame(
            Kind.PHASED if record.phases else Kind.RECORD, record_to_json(checked_record(record)),
            record.samples.rows(), record.phases.values()) for record in records))
        self._n_records += len(records)

    def note(self, kind: str, data: Mapping[str, Any], *, durable: bool = True) -> None:
        """Put a note on disk; one that is not ``durable`` outlives the process, not the machine."""
        self._write(pack_frame(Kind.NOTE, {"kind": kind, "data": dict(data)}), durable=durable)

    def readings(self, tables: Mapping[str, Rows]) -> None:
        """Write readings of telemetry, which outlive the process; what follows makes them durable.

        Raises FileError if it cannot.
        """
        frames = [pack_frame(Kind.TELEMETRY, {
            "table": table, "columns": [*KEYS, *TABLES[table].names]}, rows)
            for table, rows in tables.items()]
        if frames:
            self._write(b"".join(frames), durable=False)

    def close(self) -> None:
        """Close the file; closing twice does nothing."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes, *, durable: bool = True) -> None:
        try:
            write_all(self._descriptor, data)
            if durable:
                _sync(self._descriptor)
            n_links = os.fstat(self._descriptor).st_nlink
        except OSError as error:
            with contextlib.suppress(OSError):  # if that fails too, readers step over half a frame
                os.ftruncate(self._descriptor, self._safe_bytes)
                os.lseek(self._descriptor, self._safe_bytes, os.SEEK_SET)
            raise FileError(
                f"{self.path}: cannot be written: {error.strerror}; {self._n_records} records "
                f"({self._safe_bytes} bytes) before it are safe") from error
        if not n_links:  # the system takes the bytes all the same, and nobody will ever read them
            raise FileError(f"{self.path}: was removed while the run was on; all of this rank's "
                            "records are lost with it")
        self._safe_bytes += len(data)


def is_being_written(path: Path) -> bool:
    """Return whether a living process has the journal open for writing, as far as locks show."""
    with contextlib.suppress(UnreadableTrace), open_regular(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False


@dataclass(frozen=True, slots=True)
class ReadAt:
    """Where a frame of readings lies."""

    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class JournalTrace(TraceSource):
    """A journal as read back: ``index`` has (case id, offset, length) of each record.

    ``read_at`` has the place of each frame of readings.
    """

    index: tuple[tuple[str, int, int], ...]
    read_at: tuple[ReadAt, ...] = ()
    sealed: ClassVar[bool] = False

    @property
    def case_ids(self) -> frozenset[str]:
        """Return the ids of all cases with a record."""
        return frozenset(case_id for case_id, _, _ in self.index)

    def sample_counts(self) -> Mapping[str, int]:
        """Return how many samples each case has at most: its frames hold nothing else."""
        counts: Counter[str] = Counter()
        for case_id, _, n_bytes in self.index:
            counts[case_id] += n_bytes // (8 * len(SAMPLE_COLUMNS_1))
        return counts

    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True,
        empty: Empty = new_array,
    ) -> Iterator[Record]:
        """Yield the records of these cases in the order they were written."""
        with open_regular(self.path) as descriptor:
            for case_id, offset, n_bytes in self.index:
                if case_ids is None or case_id in case_ids:
                    frame = frame_at(os.pread(descriptor, n_bytes, offset), 0)
                    if isinstance(frame, Damage):
                        raise TraceError(f"{self.path}: changed while it was read")
                    yield _record(frame, empty if samples else None)

    def telemetry(self) -> Mapping[str, Rows]:
        """Return the readings of each table."""
        found: dict[str, list[Rows]] = {}
        with open_regular(self.path) as descriptor:
            for at in self.read_at:
                frame = frame_at(os.pread(descriptor, at.n_bytes, at.offset), 0)
                if isinstance(frame, Damage):
                    raise TraceError(f"{self.path}: changed while it was read")
                table, rows = frame.readings()
                if len(rows):
                    found.setdefault(table, []).append(rows)
        return {table: np.concatenate(parts) for table, parts in found.items()}


def read_journal(path: Path) -> JournalTrace:
    """Return every whole frame of a journal, and what else was in it.

    Damage never raises; it is listed. Raises UnreadableTrace if no header is left, or if a newer
    hpcbench wrote it.
    """
    with open_regular(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        items = list(scan(file.read()))
    frames = [item for item in items if isinstance(item, Frame)]
    headers = [frame for frame in frames if frame.kind == Kind.HEADER]
    if not headers:
        raise UnreadableTrace("HB103", f"{path}: not an hpcbench journal, or its header is lost")
    meta: Any = {}
    with contextlib.suppress(ValueError):
        meta = headers[0].json()
    header = header_from_json(meta, path)
    plans = [plan_from_text(frame.meta, path) for frame in frames if frame.kind == Kind.PLAN]
    found = [_understood(item) if isinstance(item, Frame) else item for item in items]
    return JournalTrace(
        path, header, plans[0] if plans else None,
        notes=tuple(item for item in found if isinstance(item, Note)),
        damage=tuple(item for item in found if isinstance(item, Damage)),
        index=tuple(item for item in found if isinstance(item, tuple)),
        read_at=tuple(item for item in found if isinstance(item, ReadAt)))


def _understood(frame: Frame) -> tuple[str, int, int] | Note | ReadAt | Damage | None:
    """Return (case id, offset, length) of a record, a note, or where readings are.

    None for others; Damage for unknown.
    """
    try:
        if frame.kind in (Kind.RECORD, Kind.RECORD_1, Kind.PHASED):
            record = _record(frame, None)
            check_types(record, ARRAYS)
            return record.case_id, frame.offset, frame.end - frame.offset
        if frame.kind == Kind.NOTE:
            meta = frame.json()
            note = Note(meta["kind"], meta["data"])
            check_types(note)
            if note.kind == CLOCK_NOTE:
                from_values(SyncRecord, note.data)
            if note.kind == TELEMETRY_NOTE:
                from_values(Told, note.data)
            return note
        if Kind(frame.kind) is Kind.TELEMETRY:
            frame.readings()
            return ReadAt(frame.offset, frame.end - frame.offset)
    except (KeyError, TypeError, ValueError) as error:
        return Damage(frame.offset, f"cannot be understood: {error!r}", torn=False)
    return None


def _record(frame: Frame, empty: Empty | None) -> Record:
    """Return the record of a frame, without samples where nothing makes arrays for them."""
    if empty is None:
        frame.phase_names()  # raises where the rows are not what the meta text says
        return record_from_json(frame.json(), no_samples())
    return record_from_json(frame.json(), frame.samples(empty), frame.phases(empty))

"""The live record of one rank: an append-only file that loses nothing it has acknowledged. HDF5
cannot be that: killed while writing it leaves files that do not open, and a full disk crashes the
process. `seal` turns a finished journal into HDF5. A frame can be located and verified whatever is
around it: a 28-byte head and a body. Head, little-endian: 8 bytes of magic, then uint32: kind,
length of the meta text, number of sample rows, CRC-32 of the body, CRC-32 of the head so far (a
damaged length would hide later frames). Body: meta text (ASCII JSON), rows as int64. Telemetry: one
frame a table, names of columns, rows. A record with phases has, behind its rows, a column for each
name in ``phases``, and its head counts int64 instead of rows."""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import zlib
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from enum import IntEnum
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from hpcbench.errors import FileError, TraceError, command_line
from hpcbench.plan.case import Plan, plan_to_json
from hpcbench.records import dataclass
from hpcbench.texts import from_json, to_json
from hpcbench.trace import schema, source
from hpcbench.trace.clock import SyncRecord
from hpcbench.trace.columns import KEYS, TABLES, TELEMETRY_NOTE, Rows, TelemetryReport, as_today
from hpcbench.trace.container import open_regular, sync_folder, write_all

MAGIC = b"\x89HBJ\r\n\x1a\n"
"""No frame contains it elsewhere: meta is ASCII, and as an int64 it is no plausible stamp."""
_HEAD = struct.Struct("<8sIIII")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """The content of a frame. Number 3 was a record of schema version 1."""

    HEADER = 1
    PLAN = 2
    NOTE = 4
    RECORD = 5
    PHASED = 6
    TELEMETRY = 7


@dataclass(frozen=True, slots=True)
class Frame:
    """A whole frame whose checksums are right; ``meta`` and ``rows`` are still raw bytes."""

    offset: int
    kind: int
    meta: bytes
    rows: bytes

    @property
    def end(self) -> int:
        return self.offset + HEAD_BYTES + len(self.meta) + len(self.rows)

    def json(self) -> Any:
        return from_json(self.meta)

    def samples(self) -> schema.SampleColumns:
        values = np.frombuffer(self.rows, dtype="<i8").astype(np.int64)
        width = len(schema.SAMPLE_COLUMNS)
        return schema.SampleColumns.of_rows(values[:self._n_samples() * width].reshape(-1, width))

    def readings(self) -> tuple[str, Rows]:
        """Return table and rows of kind TELEMETRY; none of an unknown table. Raises KeyError,
        TypeError or ValueError."""
        meta = self.json()
        table, columns = str(meta["table"]), [str(name) for name in meta["columns"]]
        if table not in TABLES:
            return table, np.empty((0, len(KEYS)), dtype=np.int64)
        values = np.frombuffer(self.rows, dtype="<i8").reshape(-1, len(columns))
        return table, as_today(table, columns, values.astype(np.int64))

    def phase_names(self) -> list[str]:
        """Return the names of the phases. Raises ValueError if the rows do not fit them."""
        if self.kind != Kind.PHASED:
            return []
        names = [str(name) for name in self.json()["phases"]]
        if not names or len(set(names)) < len(names) or (
                len(self.rows) % (8 * (len(schema.SAMPLE_COLUMNS) + len(names)))):
            raise ValueError(f"{len(self.rows)} bytes hold no samples with the phases {names}")
        return names

    def phases(self) -> schema.Phases:
        names = self.phase_names()
        if not names:
            return {}
        values = np.frombuffer(self.rows, dtype="<i8").astype(np.int64)
        block = values[self._n_samples() * len(schema.SAMPLE_COLUMNS):].reshape(len(names), -1)
        return dict(zip(names, block, strict=True))

    def _n_samples(self) -> int:
        return len(self.rows) // (8 * (len(schema.SAMPLE_COLUMNS) + len(self.phase_names())))


def _row_bytes(kind: int) -> int:
    return 8 if kind in (Kind.PHASED, Kind.TELEMETRY) else 8 * len(schema.SAMPLE_COLUMNS)


def pack_frame(
    kind: Kind, meta: Mapping[str, Any], samples: schema.Samples | None = None,
    phases: Iterable[schema.Times] = (),
) -> bytes:
    rows = schema.no_rows() if samples is None else samples
    text = to_json(meta, separators=(",", ":")).encode("ascii")
    numbers = b"".join(part.astype("<i8").tobytes() for part in (rows, *phases))
    body = text + numbers
    count = len(numbers) // _row_bytes(kind)
    head = _HEAD.pack(MAGIC, kind, len(text), count, zlib.crc32(body))
    return head + _CRC.pack(zlib.crc32(head)) + body


def frame_at(data: bytes, offset: int) -> Frame | source.Damage:
    head = data[offset:offset + HEAD_BYTES]
    if len(head) < HEAD_BYTES:
        return source.Damage(offset, f"{len(head)} bytes are no whole frame", torn=True)
    magic, kind, text_bytes, rows, body_crc = _HEAD.unpack_from(head)
    if magic != MAGIC or _CRC.unpack_from(head, _HEAD.size)[0] != zlib.crc32(head[:-_CRC.size]):
        return source.Damage(offset, "no frame starts here", torn=False)
    start = offset + HEAD_BYTES
    end = start + text_bytes + rows * _row_bytes(kind)
    if end > len(data):
        return source.Damage(
            offset, f"the frame's last {end - len(data)} bytes are missing", torn=True)
    body = data[start:end]
    if zlib.crc32(body) != body_crc:
        return source.Damage(
            offset, "CRC mismatch: the frame was changed after it was written", torn=False)
    return Frame(offset, kind, body[:text_bytes], body[text_bytes:])


def scan(data: bytes) -> Iterator[Frame | source.Damage]:
    """Yield every whole frame, and the damage between them. After damage the next magic counts: an
    append that failed half way may precede a good one."""
    offset = 0
    while offset < len(data):
        item = frame_at(data, offset)
        if isinstance(item, Frame):
            offset = item.end
        else:
            resume = data.find(MAGIC, offset + 1)
            offset = len(data) if resume < 0 else resume
            item = source.Damage(item.offset, item.what, item.torn and resume < 0)
        yield item


def journal_path(traces: Path, rank: int) -> Path:
    return traces / f"rank{rank:05d}.journal"


_sync = getattr(os, "fdatasync", os.fsync)  # macOS has the latter only


class Journal:
    """An open journal, by `create`. `append` and durable `note` return when data are on disk."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor
        self._safe_bytes = 0
        self._n_records = 0

    @classmethod
    def create(cls, path: Path, header: schema.Header, plan: Plan | None = None) -> Journal:
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
            opening = [pack_frame(Kind.HEADER, source.header_to_json(header))] * 2
            opening += [] if plan is None else [pack_frame(Kind.PLAN, plan_to_json(plan))]
            journal._write(b"".join(opening))
            sync_folder(path.parent)
        except BaseException:
            journal.close()
            with contextlib.suppress(OSError):  # an empty file would be a trace that was lost
                path.unlink()
            raise
        return journal

    def append(self, *records: schema.Record) -> None:
        """Put records on disk. Raises FileError, earlier ones being safe, or ValueError for a bad
        record."""
        self._write(b"".join(pack_frame(
            Kind.PHASED if record.phases else Kind.RECORD,
            source.record_to_json(source.checked_record(record)),
            record.samples.rows(), record.phases.values()) for record in records))
        self._n_records += len(records)

    def note(self, kind: str, data: Mapping[str, Any], *, durable: bool = True) -> None:
        """Put a note on disk; one that is not ``durable`` outlives the process, not the machine."""
        self._write(pack_frame(Kind.NOTE, {"kind": kind, "data": dict(data)}), durable=durable)

    def readings(self, tables: Mapping[str, Rows]) -> None:
        """Write telemetry, which outlives the process; the next durable write makes it durable."""
        frames = [pack_frame(Kind.TELEMETRY, {
            "table": table, "columns": [*KEYS, *TABLES[table].names]}, rows)
            for table, rows in tables.items()]
        if frames:
            self._write(b"".join(frames), durable=False)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Journal:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _write(self, data: bytes, *, durable: bool = True) -> None:
        try:
            n_bytes = os.fstat(self._descriptor).st_size
            if n_bytes == self._safe_bytes:
                write_all(self._descriptor, data)
            if durable:
                _sync(self._descriptor)
            n_links = os.fstat(self._descriptor).st_nlink
        except OSError as error:
            with contextlib.suppress(OSError):  # if that fails too, readers step over half a frame
                os.ftruncate(self._descriptor, self._safe_bytes)
                os.lseek(self._descriptor, self._safe_bytes, os.SEEK_SET)
            raise FileError(f"{self.path}: cannot be written: {error.strerror}; {self.kept()}"
                            ) from error
        if not n_links:  # the system takes the bytes all the same, and nobody will ever read them
            raise FileError(f"{self.path}: was removed while the run was on; all of this rank's "
                            "records are lost with it")
        if n_bytes != self._safe_bytes:
            raise FileError(f"{self.path}: another program changed it from {self._safe_bytes} to "
                            f"{n_bytes} bytes while the run was on; {self.kept()}")
        if durable and not self._is_in_place():
            raise FileError(f"{self.path}: was moved to {self._place()} while the run was on; "
                            f"{self.kept()}")
        self._safe_bytes += len(data)

    def _is_in_place(self) -> bool:
        with contextlib.suppress(OSError):
            return os.path.samestat(self.path.stat(), os.fstat(self._descriptor))
        return False

    def _place(self) -> Path:
        """Return where the file is now, as far as the system tells."""
        with contextlib.suppress(OSError):
            return Path(f"/proc/self/fd/{self._descriptor}").readlink()
        return self.path

    def kept(self) -> str:
        """Return in words how many of the records can be read back at this moment."""
        n_kept = self._n_kept()
        if not self._n_records:
            return "nothing was recorded before it"
        if n_kept == self._n_records:
            return f"{n_kept} records ({self._safe_bytes} bytes) before it are safe"
        return f"{n_kept} of {self._n_records} records can be read back"

    def _n_kept(self) -> int:
        with contextlib.suppress(OSError, TraceError):
            return len(read_journal(self._place()).index)
        return 0

    def to_see(self, folder: Path) -> str:
        """Return how to see what is recorded in the results ``folder`` at this moment, as far as
        this rank knows."""
        if not self._n_kept():
            return "Of this attempt on this rank nothing is recorded that can be read back"
        with contextlib.suppress(ValueError):
            depth = len(self.path.relative_to(folder).parts)
            folder = self._place().parents[depth - 1]
        return f"What is recorded is on disk; to see it, run: {command_line('reduce', folder)}"


def is_being_written(path: Path) -> bool:
    """Return whether a living process has the journal open for writing, as far as locks show."""
    with contextlib.suppress(source.UnreadableTrace), open_regular(path) as descriptor:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except OSError as error:
            return isinstance(error, BlockingIOError)
    return False


@dataclass(frozen=True, slots=True)
class ReadAt:
    """The place of a frame of readings."""

    offset: int
    n_bytes: int


@dataclass(frozen=True, slots=True)
class JournalTrace(source.TraceSource):
    """A journal as read back; ``index``: (case id, offset, length) of records; ``read_at``:
    readings."""

    index: tuple[tuple[str, int, int], ...]
    read_at: tuple[ReadAt, ...] = ()
    sealed: ClassVar[bool] = False

    @property
    def case_ids(self) -> frozenset[str]:
        return frozenset(case_id for case_id, _, _ in self.index)

    def sample_counts(self) -> Mapping[str, int]:
        counts: Counter[str] = Counter()
        for case_id, _, n_bytes in self.index:
            counts[case_id] += n_bytes // (8 * len(schema.SAMPLE_COLUMNS))
        return counts

    def records(
        self, case_ids: Collection[str] | None = None, *, samples: bool = True,
    ) -> Iterator[schema.Record]:
        with open_regular(self.path) as descriptor:
            for case_id, offset, n_bytes in self.index:
                if case_ids is None or case_id in case_ids:
                    frame = frame_at(os.pread(descriptor, n_bytes, offset), 0)
                    if isinstance(frame, source.Damage):
                        raise TraceError(f"{self.path}: changed while it was read")
                    yield _record(frame, samples=samples)

    def telemetry(self) -> Mapping[str, Rows]:
        tables: dict[str, list[Rows]] = {}
        with open_regular(self.path) as descriptor:
            for at in self.read_at:
                frame = frame_at(os.pread(descriptor, at.n_bytes, at.offset), 0)
                if isinstance(frame, source.Damage):
                    raise TraceError(f"{self.path}: changed while it was read")
                table, rows = frame.readings()
                if len(rows):
                    tables.setdefault(table, []).append(rows)
        return {table: np.concatenate(parts) for table, parts in tables.items()}


def read_journal(path: Path) -> JournalTrace:
    """Return every whole frame of a journal, and its damage, which never raises. Raises
    UnreadableTrace without a header, or of another version."""
    with open_regular(path) as descriptor, os.fdopen(descriptor, "rb", closefd=False) as file:
        items = list(scan(file.read()))
    frames = [item for item in items if isinstance(item, Frame)]
    headers = [frame for frame in frames if frame.kind == Kind.HEADER]
    if not headers:
        raise source.UnreadableTrace(
            "HB103", f"{path}: not an hpcbench journal, or its header is lost")
    meta: Any = {}
    with contextlib.suppress(ValueError):
        meta = headers[0].json()
    header = source.header_from_json(meta, path)
    plans = [source.plan_from_text(frame.meta, path) for frame in frames if frame.kind == Kind.PLAN]
    records = [_understood(item) if isinstance(item, Frame) else item for item in items]
    return JournalTrace(
        path, header, plans[0] if plans else None,
        notes=tuple(item for item in records if isinstance(item, source.Note)),
        damage=tuple(item for item in records if isinstance(item, source.Damage)),
        index=tuple(item for item in records if isinstance(item, tuple)),
        read_at=tuple(item for item in records if isinstance(item, ReadAt)))


def _understood(frame: Frame) -> tuple[str, int, int] | source.Note | ReadAt | source.Damage | None:
    try:
        if frame.kind in (Kind.RECORD, Kind.PHASED):
            record = _record(frame, samples=False)
            schema.check_types(record, source.ARRAYS)
            return record.case_id, frame.offset, frame.end - frame.offset
        if frame.kind == Kind.NOTE:
            meta = frame.json()
            note = source.Note(meta["kind"], meta["data"])
            schema.check_types(note)
            if note.kind == source.CLOCK_NOTE:
                schema.from_values(SyncRecord, note.data)
            if note.kind == TELEMETRY_NOTE:
                schema.from_values(TelemetryReport, note.data)
            return note
        if Kind(frame.kind) is Kind.TELEMETRY:
            frame.readings()
            return ReadAt(frame.offset, frame.end - frame.offset)
    except (KeyError, TypeError, ValueError) as error:
        return source.Damage(frame.offset, f"cannot be understood: {error!r}", torn=False)
    return None


def _record(frame: Frame, *, samples: bool) -> schema.Record:
    if not samples:
        frame.phase_names()  # raises where the rows do not fit the meta text
        return source.record_from_json(frame.json(), schema.no_samples())
    return source.record_from_json(frame.json(), frame.samples(), frame.phases())

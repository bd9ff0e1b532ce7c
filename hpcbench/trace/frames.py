"""Frames of a journal: each can be located and verified whatever bytes are around it.

A frame is a 28-byte head and a body. The head, little-endian, begins with 8 bytes of magic. Then
come, as uint32: kind, length of the meta text, number of sample rows, CRC-32 of the body, CRC-32
of the head so far.
Body: the meta text (ASCII JSON), then the rows as int64. The head has a CRC of its own because a
damaged length would otherwise hide every frame behind it.

Readings of telemetry are one frame a table: names of columns, then the rows as int64.
A record with phases has a kind of its own. Behind the rows of samples it has a column for each
name in the meta text's ``phases``. Its head holds the number of all int64 instead of rows.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np

from hpcbench.texts import from_json, to_json
from hpcbench.trace.arena import Empty
from hpcbench.trace.schema import (
    NO_DEVICE_TIME,
    SAMPLE_COLUMNS,
    SAMPLE_COLUMNS_1,
    Phases,
    SampleColumns,
    Samples,
    Times,
    no_rows,
)
from hpcbench.trace.source import Damage
from hpcbench.trace.telemetry import KEYS, TABLES, Rows, as_today

MAGIC = b"\x89HBJ\r\n\x1a\n"
"""No frame contains it elsewhere: meta is ASCII, and as an int64 it is no plausible stamp."""
_HEAD = struct.Struct("<8sIIII")
_CRC = struct.Struct("<I")
HEAD_BYTES = _HEAD.size + _CRC.size


class Kind(IntEnum):
    """What a frame holds: RECORD_1 a record of version 1, with shorter rows; PHASED has phases.

    TELEMETRY holds readings of one table (`trace.telemetry`).
    """

    HEADER = 1
    PLAN = 2
    RECORD_1 = 3
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
        """Return the offset of the byte behind the frame."""
        return self.offset + HEAD_BYTES + len(self.meta) + len(self.rows)

    def json(self) -> Any:
        """Return the meta text as JSON values. Raises ValueError if it is none."""
        return from_json(self.meta)

    def samples(self, empty: Empty) -> SampleColumns:
        """Return the samples, in what ``empty`` makes."""
        names = _columns(self.kind)
        values = np.frombuffer(self.rows, dtype="<i8")
        rows = values[:self._n_samples() * len(names)].reshape(-1, len(names))
        samples = empty((len(rows), len(SAMPLE_COLUMNS)))
        if names == SAMPLE_COLUMNS:
            samples[:] = rows
        else:
            samples[:] = NO_DEVICE_TIME
            samples[:, [SAMPLE_COLUMNS.index(name) for name in names]] = rows
        return SampleColumns.of_rows(samples)

    def readings(self) -> tuple[str, Rows]:
        """Return table and rows of kind TELEMETRY; none of a table that is not known.

        Raises KeyError, TypeError or ValueError if it is none.
        """
        meta = self.json()
        table, columns = str(meta["table"]), [str(name) for name in meta["columns"]]
        if table not in TABLES:
            return table, np.empty((0, len(KEYS)), dtype=np.int64)
        values = np.frombuffer(self.rows, dtype="<i8").reshape(-1, len(columns))
        return table, as_today(table, columns, values.astype(np.int64))

    def phase_names(self) -> list[str]:
        """Return the names of the phases. Raises ValueError if the rows are not of them."""
        if self.kind != Kind.PHASED:
            return []
        names = [str(name) for name in self.json()["phases"]]
        if not names or len(set(names)) < len(names) or (
                len(self.rows) % (8 * (len(SAMPLE_COLUMNS) + len(names)))):
            raise ValueError(f"{len(self.rows)} bytes hold no samples with the phases {names}")
        return names

    def phases(self, empty: Empty) -> Phases:
        """Return each phase's ns, (sample,), in what ``empty`` makes."""
        names = self.phase_names()
        if not names:
            return {}
        n_samples = self._n_samples()
        block = empty((len(names), n_samples))
        behind = n_samples * len(SAMPLE_COLUMNS)
        block[:] = np.frombuffer(self.rows, dtype="<i8")[behind:].reshape(block.shape)
        return dict(zip(names, block, strict=True))

    def _n_samples(self) -> int:
        return len(self.rows) // (8 * (len(_columns(self.kind)) + len(self.phase_names())))


def _columns(kind: int) -> tuple[str, ...]:
    return SAMPLE_COLUMNS_1 if kind == Kind.RECORD_1 else SAMPLE_COLUMNS


def _row_bytes(kind: int) -> int:
    """Return what the head counts: rows, or single values where rows are of other lengths."""
    return 8 if kind in (Kind.PHASED, Kind.TELEMETRY) else 8 * len(_columns(kind))


def pack_frame(
    kind: Kind, meta: Mapping[str, Any], samples: Samples | None = None,
    phases: Iterable[Times] = (),
) -> bytes:
    """Return the bytes of one frame; ``phases`` are those of kind PHASED."""
    rows = no_rows() if samples is None else samples
    text = to_json(meta, separators=(",", ":")).encode("ascii")
    numbers = b"".join(part.astype("<i8").tobytes() for part in (rows, *phases))
    body = text + numbers
    count = len(numbers) // _row_bytes(kind)
    head = _HEAD.pack(MAGIC, kind, len(text), count, zlib.crc32(body))
    return head + _CRC.pack(zlib.crc32(head)) + body


def frame_at(data: bytes, offset: int) -> Frame | Damage:
    """Return the frame that starts at ``offset``, or what is wrong there."""
    head = data[offset:offset + HEAD_BYTES]
    if len(head) < HEAD_BYTES:
        return Damage(offset, f"{len(head)} bytes are no whole frame", torn=True)
    magic, kind, text_bytes, rows, body_crc = _HEAD.unpack_from(head)
    if magic != MAGIC or _CRC.unpack_from(head, _HEAD.size)[0] != zlib.crc32(head[:-_CRC.size]):
        return Damage(offset, "no frame starts here", torn=False)
    start = offset + HEAD_BYTES
    end = start + text_bytes + rows * _row_bytes(kind)
    if end > len(data):
        return Damage(offset, f"the frame's last {end - len(data)} bytes are missing", torn=True)
    body = data[start:end]
    if zlib.crc32(body) != body_crc:
        return Damage(offset, "CRC mismatch: the frame was changed after it was written", False)
    return Frame(offset, kind, body[:text_bytes], body[text_bytes:])


def scan(data: bytes) -> Iterator[Frame | Damage]:
    """Yield every whole frame, and what lies between them.

    After damage it goes on at the next magic, not behind the damaged frame: an append that failed
    half way may have been followed by a good one.
    """
    offset = 0
    while offset < len(data):
        item = frame_at(data, offset)
        if isinstance(item, Frame):
            offset = item.end
        else:
            resume = data.find(MAGIC, offset + 1)
            offset = len(data) if resume < 0 else resume
            item = Damage(item.offset, item.what, item.torn and resume < 0)
        yield item

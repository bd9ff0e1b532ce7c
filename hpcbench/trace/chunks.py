"""Chunks of stamps as HDF5's filters shuffle and deflate store them, several times as fast.

Shuffled, a chunk is eight planes: the lowest bytes of all its values, then the next ones. The low
planes of stamps are noise, which deflate searches in vain, and the high ones hold one byte over and
over. So noise is stored, equal bytes are deflated once and for all, and only the rest is deflated.
The result is one valid zlib stream (RFC 1950, RFC 1951) that HDF5 unpacks as any other.

Columns of a sealed file, read chunk by chunk past HDF5.

HDF5 would unpack a chunk again for each group of cases that shares it, and open every file again.
Here, neighbouring chunks are read at once, the last one of each column is kept for the next group,
and a chunk that all ranks have alike (flags, times that nobody took) is unpacked once.
`trace.positions` knows where the chunks lie.
"""

from __future__ import annotations

import math
import os
import struct
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.trace.arena import Empty, new_array

LEVEL = 1
_HEADER = b"\x78\x01"
_LAST_BLOCK = b"\x03\x00"
_STORED_BYTES = 65535
_LOOKED_AT_BYTES = 512
_NOISY_VALUES = 130
"""Of 256 bytes of noise about 162 are different, of 7 random bits about 110."""
_NOISE_SHARE = 8
"""Chunks that pack less well than to an eighth are noise."""
_ADLER = 65521
Piece = bytes | memoryview


class Packer:
    """Packs chunks of one column.

    A chunk that equals the one before it is not packed again. So it is with numbers of ranks and
    iterations, where cases of one shape fill whole chunks.
    """

    def __init__(self) -> None:
        self._equal: dict[tuple[int, int], bytes] = {}
        self._whole: dict[tuple[bytes, int], bytes] = {}
        self._last: tuple[npt.NDArray[np.int64], bytes] | None = None

    def pack(self, chunk: npt.NDArray[np.int64]) -> bytes:
        """Return a chunk of at least one value as stored behind the filters shuffle and deflate."""
        if _is_one_value(chunk):
            return self._packed_whole(chunk)
        values = np.ascontiguousarray(chunk, dtype="<i8")
        last = self._last
        if last is not None and values[-1] == last[0][-1] and np.array_equal(values, last[0]):
            return last[1]
        differing = np.bitwise_or.reduce(values ^ values[0]).astype("<i8").tobytes()
        packed = self._packed(
            values.view(np.uint8).reshape(-1, 8), values[:1].tobytes(), differing)
        if len(packed) * _NOISE_SHARE < values.nbytes:  # noise never comes again
            self._last = values.copy(), packed
        return packed

    def _packed_whole(self, chunk: npt.NDArray[np.int64]) -> bytes:
        """Return a chunk that holds one value all over."""
        first, rows = chunk[:1].astype("<i8").tobytes(), chunk.size
        if (first, rows) not in self._whole:
            none = np.empty((rows, 0), np.uint8)
            self._whole[first, rows] = self._packed(none, first, bytes(8))
        return self._whole[first, rows]

    def _packed(self, by_row: npt.NDArray[np.uint8], first: bytes, differing: bytes) -> bytes:
        """Return a chunk, whose first value is ``first``; in zero bytes of ``differing`` all are.
        """
        pieces: list[Piece] = [_HEADER]
        checksum = 1
        for differ, group in groupby(range(8), lambda plane: differing[plane] > 0):
            planes = [*group]
            if differ:
                data = [by_row[:, plane].tobytes() for plane in planes]
                for plane_bytes in data:
                    checksum = zlib.adler32(plane_bytes, checksum)
                pieces += _differing(data)
            else:
                equal = first[planes[0]:planes[-1] + 1]
                checksum = _adler32_of_equal(equal, len(by_row), checksum)
                pieces.append(self._equal_planes(equal, len(by_row)))
        return b"".join([*pieces, _LAST_BLOCK, struct.pack(">I", checksum)])

    def _equal_planes(self, equal: bytes, rows: int) -> bytes:
        """Return the blocks of planes of which each holds one byte, of ``equal``, all over."""
        runs = [(byte, rows * sum(1 for _ in planes)) for byte, planes in groupby(equal)]
        for byte, length in runs:
            if (byte, length) not in self._equal:
                self._equal[byte, length] = _deflated(bytes([byte]) * length)
        return b"".join(self._equal[run] for run in runs)


def _is_one_value(chunk: npt.NDArray[np.int64]) -> bool:
    """Return whether all rows hold the same; of `numpy.broadcast_to` it is known unread."""
    return not chunk.strides[0] or bool(chunk[0] == chunk[-1] and np.all(chunk == chunk[0]))


def _differing(planes: Iterable[bytes]) -> Iterator[Piece]:
    """Yield the blocks of planes, of which neighbours that are no noise share them."""
    for is_noise, group in groupby(planes, _is_noise):
        if is_noise:
            for plane in group:
                yield from _stored(plane)
        else:
            yield _deflated(b"".join(group))


def _is_noise(data: bytes) -> bool:
    """Return whether deflate would find neither frequent bytes nor sequences that come again."""
    if len(set(data[:_LOOKED_AT_BYTES // 2])) < _NOISY_VALUES:
        return False
    looked_at = np.frombuffer(data[:_LOOKED_AT_BYTES], dtype=np.uint8).astype(np.uint32)
    triples = np.sort(looked_at[:-2] | looked_at[1:-1] << 8 | looked_at[2:] << 16)
    return bool(np.count_nonzero(np.diff(triples)) + 1 > 0.9 * triples.size)


def _adler32_of_equal(equal: bytes, rows: int, checksum: int) -> int:
    """Return what `zlib.adler32` gives for ``rows`` times each byte (RFC 1950, 8.2)."""
    low, high = checksum & 0xFFFF, checksum >> 16
    for byte in equal:
        high = (high + rows * low + byte * rows * (rows + 1) // 2) % _ADLER
        low = (low + byte * rows) % _ADLER
    return high << 16 | low


def _stored(data: bytes) -> Iterator[Piece]:
    """Yield blocks that are not the last ones and hold the bytes as they are, uncopied."""
    whole = memoryview(data)
    for at in range(0, len(data), _STORED_BYTES):
        part = whole[at:at + _STORED_BYTES]
        yield struct.pack("<BHH", 0, len(part), len(part) ^ 0xFFFF)
        yield part


def _deflated(data: bytes) -> bytes:
    """Return blocks that are not the last ones and end on a whole byte."""
    packer = zlib.compressobj(LEVEL, zlib.DEFLATED, -zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush(zlib.Z_SYNC_FLUSH)


Values = npt.NDArray[np.int64]
_PLAIN_BYTES = 512
"""A chunk that was packed into less holds hardly any noise: others may be equal to it."""
_MOST_PLAIN = 1024
_MOST_ALIKE_BYTES = 16 << 20
"""Of rows that may come again: those of one group of cases come on all ranks, and then no more."""
_MOST_BETWEEN_BYTES = 1 << 16
"""Between the chunks of a column that is read at once: HDF5's own tables."""
KEPT_BYTES = 64 << 20
_UNPACKED_AT_ONCE = 8
"""Their bytes stay in the processor's cache."""


class ChunkMemory:
    """Unpacked chunks that may be needed again, of all traces of a run; one thread may use it.

    Where the last chunks of all columns take more than ``kept_bytes``, some are unpacked again.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._plain: dict[tuple[int, bytes], Values] = {}
        self._alike: dict[tuple[object, ...], Values] = {}
        self._alike_bytes = 0
        self._cut: dict[int, tuple[Values, Sequence[slice], Sequence[Values]]] = {}
        self._last: dict[int, tuple[int, Values]] = {}
        self._free_bytes = self._kept_bytes = kept_bytes

    def __reduce__(self) -> tuple[type[ChunkMemory], tuple[int]]:
        """Have a copy in another process begin empty: columns have other numbers there."""
        return ChunkMemory, (self._kept_bytes,)

    def unpacked(self, packed: bytes, rows: int) -> Values:
        """Return what was packed; equal chunks that take little are unpacked once."""
        if len(packed) > _PLAIN_BYTES:
            values = np.empty(rows, dtype="<i8")
            unpack([packed], values)
            return values
        known = self._plain.get((rows, packed))
        if known is not None:
            return known
        if len(self._plain) == _MOST_PLAIN:
            self._plain.clear()
        values = np.empty(rows, dtype="<i8")
        unpack([packed], values)
        self._plain[rows, packed] = values = _constant_if_equal(values)
        return values

    def alike(self, key: tuple[object, ...], make: Callable[[], Values]) -> Values:
        """Return the rows that ``key`` tells, which nobody may write into; made if not known."""
        known = self._alike.get(key)
        if known is None:
            if self._alike_bytes > _MOST_ALIKE_BYTES or len(self._alike) == _MOST_PLAIN:
                self._alike.clear()
                self._cut.clear()
                self._alike_bytes = 0
            known = self._alike[key] = _constant_if_equal(make())
            self._alike_bytes += known.base.nbytes if known.base is not None else known.nbytes
            known.flags.writeable = False
        return known

    def cut(self, rows: Values, parts: Sequence[slice]) -> Sequence[Values]:
        """Return parts of rows. Of rows from `alike` they are the same arrays on all ranks."""
        if rows.flags.writeable:
            return [rows[part] for part in parts]
        known = self._cut.get(id(rows))
        if known is None or known[0] is not rows or known[1] != parts:
            if len(self._cut) >= _MOST_PLAIN:
                self._cut.clear()
            known = self._cut[id(rows)] = rows, parts, [rows[part] for part in parts]
        return known[2]

    def last(self, column: int, number: int) -> Values | None:
        """Return a chunk of a column if it was the last one that was kept of it."""
        kept, values = self._last.get(column, (None, None))
        return values if kept == number else None

    def keep(self, column: int, number: int, values: Values) -> None:
        """Keep a chunk of a column in place of the one that was kept before, if there is room."""
        if column not in self._last:
            if values.nbytes > self._free_bytes:
                return
            self._free_bytes -= values.nbytes
        self._last[column] = number, values


def _constant_if_equal(values: Values) -> Values:
    """Return one value for all rows where they hold the same: it is copied without reading each."""
    if values.size and np.all(values == values[0]):
        return np.broadcast_to(values[:1].copy(), values.shape)
    return values


def unpack(packed: Sequence[bytes], into: npt.NDArray[Any], *, shuffled: bool = True) -> None:
    """Undo deflate and shuffle of chunks that fill ``into`` one after another, each the same part.

    Raises ValueError if they do not hold as many rows.
    """
    size, item = into.nbytes // len(packed), into.itemsize if shuffled else 1
    rows = into.view(np.uint8).reshape(len(packed), -1, item)
    planes = np.empty((_UNPACKED_AT_ONCE, item, rows.shape[1]), np.uint8)
    for first in range(0, len(packed), _UNPACKED_AT_ONCE):
        some = packed[first:first + _UNPACKED_AT_ONCE]
        for chunk, inflated in zip(planes, some, strict=False):
            chunk.reshape(-1)[:] = np.frombuffer(_inflated(inflated, size), np.uint8)
        for plane in range(item):  # of several chunks at once, which takes two thirds
            rows[first:first + len(some), :, plane] = planes[:len(some), plane]


def _inflated(packed: bytes, size: int) -> bytes:
    stream = zlib.decompressobj()
    try:
        found = stream.decompress(packed, size)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be unpacked: {error}") from error
    if len(found) != size or not stream.eof:
        raise ValueError(f"a chunk does not hold {size} bytes")
    return found


@dataclass(frozen=True, slots=True, eq=False)
class StoredColumn:
    """Where the chunks of one column lie in the file; each has ``chunk_rows``, also the last."""

    dtype: str
    shuffled: bool
    rows: int
    chunk_rows: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    def whole(self, descriptor: int) -> npt.NDArray[Any]:
        """Return all rows. Raises ValueError where its bytes cannot hold as many."""
        values = np.empty(len(self.offsets) * self.chunk_rows, dtype=self.dtype)
        if self.offsets:
            unpack(self._packed(descriptor, range(len(self.offsets))), values,
                   shuffled=self.shuffled)
        return values[:self.rows]

    def packed(self, descriptor: int) -> bytes:
        """Return all bytes as they are stored."""
        return b"".join(self._packed(descriptor, range(len(self.offsets))))

    def rows_from(
        self, descriptor: int, memory: ChunkMemory, first: int, count: int, empty: Empty,
    ) -> Values:
        """Return ``count`` rows from row ``first`` on. Raises ValueError where there are none.

        They are in what ``empty`` makes, or in ``memory`` where other columns may be alike.
        """
        def new(make: Empty) -> Values:
            rows = make((count,))
            self.read(descriptor, memory, first, rows)
            return rows

        numbers = self._chunks_of(first, count)
        if max(self.sizes[numbers.start:numbers.stop], default=_PLAIN_BYTES + 1) > _PLAIN_BYTES:
            return new(empty)
        key = (self.chunk_rows, first % self.chunk_rows, count, *self._packed(descriptor, numbers))
        return memory.alike(key, lambda: new(new_array))

    def _chunks_of(self, first: int, count: int) -> range:
        """Return the numbers of the chunks of these rows. Raises ValueError if there are none."""
        if (self.dtype, self.shuffled) != ("<i8", True):
            raise ValueError(f"stamps are shuffled <i8, not {self.dtype}")
        if not 0 <= first <= first + count <= self.rows:
            raise ValueError(f"samples {first} to {first + count} of {self.rows}")
        return range(first // self.chunk_rows, math.ceil((first + count) / self.chunk_rows))

    def read(self, descriptor: int, memory: ChunkMemory, first: int, into: Values) -> None:
        """Fill ``into`` from row ``first`` on. Raises ValueError where there are no such rows."""
        length, end, numbers = self.chunk_rows, first + into.size, self._chunks_of(first, into.size)
        if numbers and (kept := memory.last(id(self), numbers.start)) is not None:
            self._put(kept, numbers.start, first, into)
            numbers = numbers[1:]

        def is_unpacked_in_place(item: tuple[int, bytes]) -> bool:
            number, packed = item
            return len(packed) > _PLAIN_BYTES and (
                first <= number * length and (number + 1) * length <= end)

        for in_place, run in groupby(
                enumerate(self._packed(descriptor, numbers), numbers.start), is_unpacked_in_place):
            chunks = [*run]
            if in_place:
                begin = chunks[0][0] * length - first
                unpack([packed for _, packed in chunks],
                       into[begin:begin + len(chunks) * length])
            else:
                self._put_known(chunks, memory, first, into)

    def _put_known(
        self, chunks: Iterable[tuple[int, bytes]], memory: ChunkMemory, first: int, into: Values,
    ) -> None:
        """Put numbered chunks that may be known; equal neighbours of one value at once."""
        for packed, same in groupby(chunks, key=itemgetter(1)):
            values, numbers = memory.unpacked(packed, self.chunk_rows), [at for at, _ in same]
            behind = (numbers[-1] + 1) * self.chunk_rows - first
            if values.strides[0]:
                for number in numbers:
                    self._put(values, number, first, into)
            else:
                into[max(numbers[0] * self.chunk_rows - first, 0):behind] = values[0]
            if behind > into.size:
                memory.keep(id(self), numbers[-1], values)

    def _put(self, values: Values, number: int, first: int, into: Values) -> None:
        """Copy what of a chunk belongs into rows from ``first`` on."""
        start = number * self.chunk_rows
        low, high = max(first, start), min(first + into.size, start + self.chunk_rows)
        into[low - first:high - first] = values[low - start:high - start]

    def _packed(self, descriptor: int, numbers: range) -> list[bytes]:
        """Return these chunks as they are stored; they are read at once where little is between."""
        wanted = slice(numbers.start, numbers.stop)
        places = [*zip(self.offsets[wanted], self.sizes[wanted], strict=True)]
        if not places:
            return []
        begin, length = places[0][0], sum(places[-1]) - places[0][0]
        if places != sorted(places) or length > sum(
                size for _, size in places) + _MOST_BETWEEN_BYTES:
            return [os.pread(descriptor, size, offset) for offset, size in places]
        stored = os.pread(descriptor, length, begin)
        return [stored[offset - begin:offset - begin + size] for offset, size in places]

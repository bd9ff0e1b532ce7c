"""Columns of a sealed file, read chunk by chunk past HDF5.

HDF5 would unpack a chunk again for each group of cases that shares it, and open every file again.
Here, neighbouring chunks are read at once, the last one of each column is kept for the next group,
and a chunk that all ranks have alike (flags, times that nobody took) is unpacked once.
`trace.positions` knows where the chunks lie.
"""

from __future__ import annotations

import math
import os
import zlib
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt

Values = npt.NDArray[np.int64]
_PLAIN_BYTES = 512
"""A chunk that was packed into less holds hardly any noise: others may be equal to it."""
_MOST_PLAIN = 1024
_MOST_BETWEEN_BYTES = 1 << 16
"""Between the chunks of a column that is read at once: HDF5's own tables."""
KEPT_BYTES = 64 << 20


class ChunkMemory:
    """Unpacked chunks that may be needed again, of all traces of a run; one thread may use it.

    Where the last chunks of all columns take more than ``kept_bytes``, some are unpacked again.
    """

    def __init__(self, kept_bytes: int = KEPT_BYTES) -> None:
        self._plain: dict[tuple[int, bytes], Values] = {}
        self._last: dict[int, tuple[int, Values]] = {}
        self._free_bytes = kept_bytes

    def unpacked(self, packed: bytes, rows: int) -> Values:
        """Return what was packed; equal chunks that take little are unpacked once."""
        if len(packed) > _PLAIN_BYTES:
            values = np.empty(rows, dtype="<i8")
            unpack(packed, values)
            return values
        known = self._plain.get((rows, packed))
        if known is not None:
            return known
        if len(self._plain) == _MOST_PLAIN:
            self._plain.clear()
        values = np.empty(rows, dtype="<i8")
        unpack(packed, values)
        # one value in all rows is copied without reading it for each of them
        if np.all(values == values[0]):
            values = np.broadcast_to(values[:1], (rows,))
        self._plain[rows, packed] = values
        return values

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


def unpack(packed: bytes, into: npt.NDArray[Any], *, shuffled: bool = True) -> None:
    """Undo deflate and shuffle. Raises ValueError if that gives no chunk of so many rows."""
    stream, rows = zlib.decompressobj(), into.size
    try:
        planes = stream.decompress(packed, into.nbytes)
    except zlib.error as error:
        raise ValueError(f"a chunk cannot be unpacked: {error}") from error
    if len(planes) != into.nbytes or not stream.eof:
        raise ValueError(f"a chunk does not hold {rows} values")
    taken = np.frombuffer(planes, np.uint8)
    if shuffled:
        taken = taken.reshape(-1, rows).T
    into.view(np.uint8).reshape(taken.shape)[:] = taken


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
        for number, packed in enumerate(self._packed(descriptor, range(len(self.offsets)))):
            first = number * self.chunk_rows
            unpack(packed, values[first:first + self.chunk_rows], shuffled=self.shuffled)
        return values[:self.rows]

    def packed(self, descriptor: int) -> bytes:
        """Return all bytes as they are stored."""
        return b"".join(self._packed(descriptor, range(len(self.offsets))))

    def read(self, descriptor: int, memory: ChunkMemory, first: int, into: Values) -> None:
        """Fill ``into`` from row ``first`` on. Raises ValueError where there are no such rows."""
        end = first + into.size
        if not 0 <= first <= end <= self.rows:
            raise ValueError(f"samples {first} to {end} of {self.rows}")
        numbers = range(first // self.chunk_rows, math.ceil(end / self.chunk_rows))
        kept = memory.last(id(self), numbers.start) if numbers else None
        if kept is not None:
            self._put(kept, numbers.start, first, into)
            numbers = numbers[1:]
        number = numbers.start
        for packed, same in groupby(self._packed(descriptor, numbers)):
            before, number = number, number + sum(1 for _ in same)
            start = before * self.chunk_rows
            rows = into[max(start - first, 0):number * self.chunk_rows - first]
            if len(packed) > _PLAIN_BYTES and rows.size == self.chunk_rows:
                unpack(packed, rows)
                continue
            values = memory.unpacked(packed, self.chunk_rows)
            if not values.strides[0]:
                rows.fill(values[0])
            else:
                for each in range(before, number):
                    self._put(values, each, first, into)
            if end < number * self.chunk_rows:
                memory.keep(id(self), number - 1, values)

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

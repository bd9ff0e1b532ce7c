"""Columns of samples, read chunk by chunk past HDF5.

HDF5 tells nothing but where the chunks lie. It would unpack a chunk again for each group of cases
that shares it, and open every file again. Here, neighbouring chunks are read at once, the last one
of each column is kept for the next group, and a chunk that all ranks have alike (flags, times that
nobody took) is unpacked once.
"""

from __future__ import annotations

import math
import os
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.schema import SAMPLE_COLUMNS

Values = npt.NDArray[np.int64]
_SHUFFLED_AND_DEFLATED = [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE]
_COLUMNS = (*(f"samples/{name}" for name in SAMPLE_COLUMNS), "phases/ns")
_GROUPS = (b"samples", b"phases")
_INT64 = np.dtype("<i8")
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


def unpack(packed: bytes, into: Values) -> None:
    """Undo deflate and shuffle. Raises ValueError if that gives no chunk of so many rows."""
    stream, rows = zlib.decompressobj(), into.size
    try:
        planes = stream.decompress(packed, 8 * rows)
    except zlib.error as error:
        raise ValueError(f"a chunk of samples cannot be unpacked: {error}") from error
    if len(planes) != 8 * rows or not stream.eof:
        raise ValueError(f"a chunk of samples does not hold {rows} values")
    into.view(np.uint8).reshape(rows, 8)[:] = np.frombuffer(planes, np.uint8).reshape(8, rows).T


@dataclass(frozen=True, slots=True, eq=False)
class StoredColumn:
    """Where the chunks of one column lie in the file; each has ``chunk_rows``, also the last.

    ``together``: they follow one another, with little between, so that neighbours are read at once.
    """

    rows: int
    chunk_rows: int
    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    together: bool

    def read(self, descriptor: int, memory: ChunkMemory, first: int, into: Values) -> None:
        """Fill ``into`` from row ``first`` on. Raises ValueError where there are no such rows."""
        end = first + into.size
        if not 0 <= first <= end <= self.rows:
            raise ValueError(f"samples {first} to {end} of {self.rows}")
        numbers = range(first // self.chunk_rows, math.ceil(end / self.chunk_rows))
        low = first
        for number, stored in zip(numbers, self._stored(descriptor, memory, numbers), strict=True):
            start = number * self.chunk_rows
            high = min(end, start + self.chunk_rows)
            rows = into[low - first:high - first]
            if isinstance(stored, bytes) and len(stored) > _PLAIN_BYTES and (
                    high - low == self.chunk_rows):
                unpack(stored, rows)
            else:
                values = memory.unpacked(stored, self.chunk_rows) if isinstance(
                    stored, bytes) else stored
                rows[:] = values[low - start:high - start]
                if high == end < start + self.chunk_rows:
                    memory.keep(id(self), number, values)
            low = high

    def _stored(
        self, descriptor: int, memory: ChunkMemory, numbers: range,
    ) -> list[bytes | Values]:
        """Return these chunks as they are stored, but the first as it was kept, if it was."""
        found: list[bytes | Values] = []
        if numbers and (kept := memory.last(id(self), numbers[0])) is not None:
            found, numbers = [kept], numbers[1:]
        if not numbers:
            return found
        if not self.together:
            return found + [os.pread(descriptor, self.sizes[number], self.offsets[number])
                            for number in numbers]
        begin, last = self.offsets[numbers[0]], numbers[-1]
        stored = os.pread(descriptor, self.offsets[last] + self.sizes[last] - begin, begin)
        for number in numbers:
            at = self.offsets[number] - begin
            found.append(stored[at:at + self.sizes[number]])
        return found


def held_columns(file: h5py.File) -> frozenset[str]:
    """Return the columns of stamps and phases in a file."""
    found = {f"{group.decode()}/{name.decode()}" for group in _GROUPS if group in file.id
             for name in h5py.h5g.open(file.id, group)}
    return frozenset(found.intersection(_COLUMNS))


def stored_columns(
    file: h5py.File, names: Iterable[str], descriptor: int,
) -> Mapping[str, StoredColumn] | None:
    """Return these columns; None where one is stored in another way, or it is not known where.

    Some versions of HDF5 leave the head of the file out when they tell where chunks lie.
    """
    found: dict[str, StoredColumn] = {}
    for name in names:
        dataset = h5py.h5d.open(file.id, name.encode())
        column = _stored_column(dataset)
        if column is None:
            return None
        if not found:
            first = os.pread(descriptor, column.sizes[0], column.offsets[0])
            if dataset.read_direct_chunk((0,))[1] != first:
                return None
        found[name] = column
    return found


def _stored_column(dataset: h5py.h5d.DatasetID) -> StoredColumn | None:
    """Return the column; None unless it is int64 in chunks, all shuffled and deflated.

    HDF5 before 1.12.3 does not tell where chunks lie.
    """
    how = dataset.get_create_plist()
    filters = [how.get_filter(at)[0] for at in range(how.get_nfilters())]
    if dataset.dtype != _INT64 or len(dataset.shape) != 1 or filters != _SHUFFLED_AND_DEFLATED:
        return None
    (rows,), (chunk_rows,) = dataset.shape, how.get_chunk()
    chunks: list[h5py.h5d.StoreInfo] = []
    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(chunks.append)
    told = sorted((info.chunk_offset[0], info.byte_offset, info.size, info.filter_mask)
                  for info in chunks)
    if not told or [item[0] for item in told] != [*range(0, rows, chunk_rows)]:
        return None
    if any(item[3] for item in told):
        return None
    offsets, sizes = [item[1] for item in told], [item[2] for item in told]
    together = offsets == sorted(offsets) and (
        offsets[-1] + sizes[-1] - offsets[0] <= sum(sizes) + _MOST_BETWEEN_BYTES)
    return StoredColumn(rows, chunk_rows, tuple(offsets), tuple(sizes), together)

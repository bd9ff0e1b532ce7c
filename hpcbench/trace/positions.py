"""Where the chunks of a trace's datasets lie: kept behind its HDF5 image, or asked of HDF5.

HDF5 takes about 30 us to open a dataset, of which a trace has more than forty. A reader that knows
where the chunks lie needs no HDF5. Tools that do not know of the part behind the image skip it.

Layout: one line of JSON, deflated, then its length and `MAGIC`. The line maps the name of a dataset
to [type, shuffled, rows, rows of a chunk, [offset of each chunk], [bytes of each chunk]]. Offsets
count from the first byte of the image.

The datasets of an open trace: by where their chunks lie if that is known, else by HDF5.
"""

from __future__ import annotations

import json
import math
import os
import re
import struct
import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.arena import Empty
from hpcbench.trace.chunks import ChunkMemory, StoredColumn
from hpcbench.trace.columns import json_line, lines_of, read_column, read_rows, stored_bytes

MAGIC = b"hpcbench-chunks\n"
_FOOT = struct.Struct(f"<Q{len(MAGIC)}s")
_FREE_BYTES = 1 << 20
"""The line may be longer than the image by so much; no honest one is, and a forged one is cut."""
_FILTERS = ([h5py.h5z.FILTER_DEFLATE], [h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_DEFLATE])
_DTYPE = re.compile(r"<[if]8|\|S[1-9][0-9]{0,9}")
_DEFLATE_AT_MOST = 1032
_SMALL_BYTES = 1 << 20


class Positions(Mapping[str, StoredColumn]):
    """What is said behind the image from byte ``begin`` to ``end``; columns are made on demand."""

    def __init__(self, said: Mapping[str, Any], begin: int, end: int) -> None:
        self._said = said
        self._begin = begin
        self._end = end

    def __len__(self) -> int:
        return len(self._said)

    def __iter__(self) -> Iterator[str]:
        return iter(self._said)

    def __contains__(self, name: object) -> bool:
        return name in self._said

    def __getitem__(self, name: str) -> StoredColumn:
        """Return a column. Raises KeyError if there is none, TypeError or ValueError if it is none.
        """
        dtype, shuffled, rows, chunk_rows, offsets, sizes = self._said[name]
        if {*map(type, (rows, chunk_rows, *offsets, *sizes))} != {int}:
            raise TypeError(f"{name} is no column: {str(self._said[name])[:100]}")
        column = StoredColumn(dtype, bool(shuffled), rows, chunk_rows, tuple(
            [self._begin + offset for offset in offsets]), tuple(sizes))
        claimed = chunk_rows * len(sizes) * _item_bytes(dtype)
        if (rows < 0 or chunk_rows < 1 or not self._hold(column)
                or not len(offsets) == len(sizes) == math.ceil(rows / chunk_rows)
                or claimed > _DEFLATE_AT_MOST * sum(sizes) + _SMALL_BYTES):
            raise ValueError(f"{name} is no column: {str(self._said[name])[:100]}")
        return column

    def _hold(self, column: StoredColumn) -> bool:
        """Return whether the image holds all chunks of a column, none of them twice."""
        at = self._begin
        for offset, size in sorted(zip(column.offsets, column.sizes, strict=False)):
            if offset < at or size < 1:
                return False
            at = offset + size
        return at <= self._end


def behind_image(file: h5py.File) -> bytes:
    """Return what stands behind the image of this file: where the chunks of all datasets lie.

    Nothing if one of them is stored in another way, or if HDF5 does not tell (before 1.12.3). What
    was written is flushed, without which HDF5 does not know.
    """
    file.flush()
    found: dict[str, StoredColumn | None] = {}

    def look(name: str, item: h5py.Group | h5py.Dataset) -> None:
        if isinstance(item, h5py.Dataset):
            found[name] = _position(item.id)

    file.visititems(look)
    known = {name: column for name, column in found.items() if column is not None}
    if len(known) < len(found):
        return b""
    line = json_line({name: [
        column.dtype, column.shuffled, column.rows, column.chunk_rows, column.offsets,
        column.sizes] for name, column in known.items()}).encode()
    packed = zlib.compress(line)
    return packed + _FOOT.pack(len(packed), MAGIC)


def _position(dataset: h5py.h5d.DatasetID) -> StoredColumn | None:
    """Return the column; None unless it is one of numbers or texts, deflated chunk by chunk."""
    how = dataset.get_create_plist()
    filters = [how.get_filter(at)[0] for at in range(how.get_nfilters())]
    if (len(dataset.shape) != 1 or filters not in _FILTERS or not hasattr(dataset, "chunk_iter")
            or not _DTYPE.fullmatch(dataset.dtype.str)):
        return None
    (rows,), (chunk_rows,) = dataset.shape, how.get_chunk()
    chunks: list[h5py.h5d.StoreInfo] = []
    dataset.chunk_iter(chunks.append)
    chunks.sort(key=lambda chunk: chunk.chunk_offset)
    if any(chunk.filter_mask for chunk in chunks) or [
            chunk.chunk_offset[0] for chunk in chunks] != [*range(0, rows, chunk_rows)]:
        return None
    return StoredColumn(
        dataset.dtype.str, len(filters) == 2, rows, chunk_rows,
        tuple(chunk.byte_offset for chunk in chunks), tuple(chunk.size for chunk in chunks))


def read_positions(descriptor: int, image_at: int) -> Positions | None:
    """Return where the chunks lie in the file, whose image begins at ``image_at``.

    None where nothing is said behind the image. Raises ValueError where that is not as it should.
    """
    end = os.fstat(descriptor).st_size - _FOOT.size
    foot = os.pread(descriptor, _FOOT.size, max(0, end))
    if len(foot) < _FOOT.size or not foot.endswith(MAGIC):
        return None
    length, _ = _FOOT.unpack(foot)
    if not 0 < length <= end - image_at:
        raise ValueError("what tells where chunks lie is longer than the file")
    try:
        line = zlib.decompressobj().decompress(
            os.pread(descriptor, length, end - length), end + _FREE_BYTES)
    except zlib.error as error:
        raise ValueError(f"what tells where chunks lie cannot be unpacked: {error}") from error
    said = json.loads(line)
    if not isinstance(said, dict):
        raise TypeError("what tells where chunks lie is no JSON object")
    return Positions(said, image_at, end - length)


def _item_bytes(dtype: str) -> int:
    if not _DTYPE.fullmatch(dtype):
        raise ValueError(f"no type of a column: {dtype!r}")
    return int(dtype[2:])


class Datasets(Protocol):
    """What readers of a trace need of it."""

    @property
    def names(self) -> Collection[str]:
        """The names of all datasets."""

    def stored(self, name: str) -> tuple[str, bytes]:
        """Return a text that tells the length of a column, and its bytes in the file, packed.

        Columns of one name for which both are equal hold the same. Raises KeyError if it is not
        there.
        """

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column. Raises KeyError if it is not there, ValueError if it is none."""

    def read(self, name: str, first: int, count: int, empty: Empty) -> npt.NDArray[np.int64]:
        """Return rows of a column of int64, from row ``first`` on; nobody may write into them.

        They are in what ``empty`` makes, unless they are alike in many traces.
        """


@dataclass(frozen=True, slots=True)
class PlacedDatasets:
    """Datasets of which it is known where they lie in the file of ``descriptor``."""

    descriptor: int
    positions: Mapping[str, StoredColumn]
    chunks: ChunkMemory

    @property
    def names(self) -> Collection[str]:
        """Return the names of all datasets."""
        return self.positions.keys()

    def stored(self, name: str) -> tuple[str, bytes]:
        """Return what the column is and its bytes in the file."""
        column = self.positions[name]
        return f"{column.dtype} {column.rows} packed", column.packed(self.descriptor)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column."""
        return self.positions[name].whole(self.descriptor)

    def read(self, name: str, first: int, count: int, empty: Empty) -> npt.NDArray[np.int64]:
        """Return rows of a column of int64."""
        return self.positions[name].rows_from(
            self.descriptor, self.chunks, first, count, empty)


@dataclass(frozen=True, slots=True)
class Hdf5Datasets:
    """Datasets of a file that HDF5 has open: of traces that do not tell where their chunks lie."""

    file: h5py.File
    names: Collection[str]

    @classmethod
    def of(cls, file: h5py.File) -> Hdf5Datasets:
        """Return the datasets of an open file."""
        found: list[str] = []
        file.visititems(lambda name, item: found.append(name) if isinstance(
            item, h5py.Dataset) else None)
        return cls(file, frozenset(found))

    def stored(self, name: str) -> tuple[str, bytes]:
        """Return what the column is and its bytes in the file."""
        return stored_bytes(self.file, name)

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a whole column."""
        return read_column(self.file, name)

    def read(self, name: str, first: int, count: int, empty: Empty) -> npt.NDArray[np.int64]:
        """Return rows of a column of int64."""
        rows = empty((count,))
        if count:
            read_rows(self.file, name, first, rows)
        return rows


def lines(datasets: Datasets, name: str) -> list[str]:
    """Return the lines of a text. Raises KeyError if it is not there, ValueError if it is none."""
    return lines_of(datasets.column(name))

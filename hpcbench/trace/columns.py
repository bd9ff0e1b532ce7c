"""What an HDF5 file says of itself: attributes by which ``h5dump -A`` explains every part of it.

Each group and dataset has ``description`` and ``units``. Columns of numbered values or bits have
``values`` or ``bits``, too: a line for each, ``4 late_start: ...``. The root's attributes are
explained in its attribute ``attributes``. docs/results-file.md holds the same.

Columns and texts in HDF5: how both the traces and the results file store them.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.texts import to_json, valid
from hpcbench.trace.chunks import LEVEL, Packer, unpack

PURE, TEXT, LINES = "1", "text", "JSON lines"
"""Units of what has none: a pure number, a text, and one text of lines that are JSON each."""
ROOT = "/"
_TEXT = h5py.h5t.py_create(h5py.string_dtype(), logical=True)
_ONE = h5py.h5s.create(h5py.h5s.SCALAR)


@dataclass(frozen=True, slots=True)
class Described:
    """What a group or a dataset holds, and in which units; ``values`` or ``bits`` name numbers."""

    text: str
    units: str = ""
    values: Sequence[str] = ()
    bits: Sequence[str] = ()


Contents = Mapping[str, Described]
"""Path below the root, or ROOT, -> what is there."""


def describe(file: h5py.File, contents: Contents, attributes: Mapping[str, str]) -> None:
    """Set the attributes of everything in the file; ``attributes`` explains those of the root.

    Raises KeyError for a group, a dataset or an attribute of the root that is not described.
    """
    file.attrs["attributes"] = [f"{name}: {attributes[name]}" for name in sorted(file.attrs)]
    _set(file, contents[ROOT])
    file.visititems(lambda name, item: _set(item, contents[name]))


def _set(item: h5py.Group | h5py.Dataset, what: Described) -> None:
    """Set the attributes by h5py's lower level, which takes half the time."""
    for name in ("description", "units", "values", "bits"):
        said = what.text if name == "description" else getattr(what, name)
        if said:
            value = np.array(said, dtype=object)
            space = h5py.h5s.create_simple(value.shape) if value.shape else _ONE
            h5py.h5a.create(item.id, name.encode(), _TEXT, space).write(value)


CHUNK_ROWS = 2048
"""Reading one case of 200 rows unpacks 16 kB per column; larger chunks hardly pack better."""

_DEFLATE_AT_MOST = 1032
_SMALL_BYTES = 2**20


def write_column(file: h5py.File, name: str, values: npt.NDArray[Any]) -> None:
    """Store a column that can grow, packed without loss."""
    column = _new_column(file, name, values.dtype, values.size, CHUNK_ROWS)
    column.write(h5py.h5s.ALL, h5py.h5s.ALL, np.ascontiguousarray(values))


def _new_column(
    file: h5py.File, name: str, dtype: npt.DTypeLike, rows: int, chunk_rows: int,
) -> h5py.h5d.DatasetID:
    """Make a column by h5py's lower level, which takes less than half the time."""
    stored = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    stored.set_chunk((chunk_rows,))
    stored.set_shuffle()
    stored.set_deflate(LEVEL)
    stored.set_obj_track_times(False)
    link = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    link.set_create_intermediate_group(True)
    return h5py.h5d.create(
        file.id, name.encode(), h5py.h5t.py_create(np.dtype(dtype), logical=True),
        h5py.h5s.create_simple((rows,), (h5py.h5s.UNLIMITED,)), stored, link)


@dataclass(frozen=True, slots=True)
class PackedRows:
    """Rows of a column as `GrowingColumn` stores them: whole ``chunks``, one after another."""

    rows: int
    chunks: Sequence[bytes]


class GrowingColumn:
    """An int64 column that is written piece by piece; `finish` writes what is left of it."""

    def __init__(self, file: h5py.File, name: str, *, chunk_rows: int) -> None:
        self._dataset = h5py.Dataset(_new_column(file, name, "<i8", 0, chunk_rows))
        self._chunk_rows = chunk_rows
        self._rest = np.empty(0, dtype=np.int64)
        self._taken = 0
        self._packer = Packer()

    @property
    def rows(self) -> int:
        """Return how many rows were added."""
        return self._taken

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Append rows; those that fill no chunk are kept for the next ones."""
        first = self._taken - self._rest.size
        self._taken += values.size
        missing = -self._rest.size % self._chunk_rows
        if self._rest.size + values.size < self._chunk_rows:
            self._rest = np.concatenate([self._rest, values])
            return
        end = values.size - (values.size - missing) % self._chunk_rows
        chunks = [np.concatenate([self._rest, values[:missing]])] if missing else []
        self._rest = values[end:].copy()
        self._write(first, map(self._packer.pack, (
            *chunks, *values[missing:end].reshape(-1, self._chunk_rows))))

    def add_packed(self, packed: PackedRows) -> None:
        """Append rows of whole chunks; they are unpacked where they do not begin with a chunk."""
        if self._rest.size:
            values = np.empty(packed.rows, dtype="<i8")
            unpack(packed.chunks, values)
            self.add(values)
            return
        first = self._taken
        self._taken += packed.rows
        self._write(first, packed.chunks)

    def _write(self, first: int, chunks: Iterable[bytes]) -> None:
        """Store packed chunks from row ``first`` on; all rows but the rest are then there."""
        column = self._dataset.id
        column.set_extent((self._taken - self._rest.size,))
        for number, chunk in enumerate(chunks):
            column.write_direct_chunk((first + number * self._chunk_rows,), chunk)

    def finish(self) -> None:
        """Write the rows behind the last whole chunk."""
        if self._rest.size:
            self._dataset.resize((self._taken,))
            self._dataset[self._taken - self._rest.size:] = self._rest


def text_column(texts: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """Return texts as fixed-length UTF-8, which any HDF5 tool reads."""
    encoded = [valid(text).encode() for text in texts]
    width = max((len(item) for item in encoded), default=1)
    return np.array(encoded, dtype=f"S{max(width, 1)}")


def read_column(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Return a whole column. Raises KeyError if it is not there.

    Raises ValueError if it says that it holds more than its bytes in the file can: deflate packs
    1032 bytes into one at most (zlib.net, "Zlib Technical Details").
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    claimed = math.prod(dataset.shape) * dataset.dtype.itemsize
    if claimed > _DEFLATE_AT_MOST * dataset.get_storage_size() + _SMALL_BYTES:
        raise ValueError(f"{name} is said to hold {claimed} bytes, which are not there")
    values = np.empty(dataset.shape, dtype=dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def stored_bytes(file: h5py.File, name: str) -> tuple[str, bytes]:
    """Return a text that tells the length of a column, and its bytes in the file, packed.

    Columns of one name for which both are equal hold the same. Raises KeyError if it is not there.
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    try:
        is_one_chunk = dataset.get_num_chunks() == 1
    except (RuntimeError, TypeError, ValueError):  # not stored in chunks
        is_one_chunk = False
    if not is_one_chunk:
        return f"{dataset.dtype.str} {dataset.shape}", read_column(file, name).tobytes()
    mask, packed = dataset.read_direct_chunk((0,) * dataset.rank)
    return f"{dataset.shape} packed {mask}", packed


def read_rows(file: h5py.File, name: str, first: int, rows: npt.NDArray[np.int64]) -> None:
    """Fill ``rows`` from a column, beginning at its row ``first``."""
    dataset = h5py.h5d.open(file.id, name.encode())
    selection = dataset.get_space()
    selection.select_hyperslab((first,), rows.shape)
    dataset.read(h5py.h5s.create_simple(rows.shape), selection, rows)


def texts_of(column: npt.NDArray[Any]) -> list[str]:
    """Return the texts of a column that `text_column` made."""
    return [item.decode() for item in column.tolist()]


def json_line(value: Any, *, allow_nan: bool = True) -> str:
    """Return the form of all JSON in the files: one line of ASCII without spaces between values.

    Raises ValueError for a number that is not finite, unless they are allowed.
    """
    return to_json(value, separators=(",", ":"), allow_nan=allow_nan)


def write_json(file: h5py.File, name: str, values: Iterable[Any]) -> None:
    """Store JSON values, a line each, as one packed text."""
    write_lines(file, name, [json_line(value) for value in values])


def write_lines(file: h5py.File, name: str, lines: Iterable[str]) -> None:
    """Store lines that `json_line` made as one packed text."""
    text = "\n".join(lines).encode()
    file.create_dataset(name, data=np.array([text], dtype=f"S{max(len(text), 1)}"),
                        chunks=(1,), compression="gzip", compression_opts=LEVEL)


def read_text(file: h5py.File, name: str) -> str:
    """Return what `write_lines` stored. Raises KeyError if it is not there."""
    return "\n".join(read_lines(file, name))


def read_lines(file: h5py.File, name: str) -> list[str]:
    """Return the lines that `write_lines` stored. Raises KeyError if they are not there."""
    return lines_of(read_column(file, name))


def lines_of(column: npt.NDArray[Any]) -> list[str]:
    """Return the lines of a column that `write_lines` made."""
    (text,) = texts_of(column)
    return text.split("\n") if text else []

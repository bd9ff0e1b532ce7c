"""Columns and texts in HDF5, as traces and results store them, and what a file says of itself.

By attributes ``h5dump -A`` explains every part: each group and dataset has ``description`` and
``units``. Columns of numbered values or bits have ``values`` or ``bits``, too: a line for each, ``4
late_start: ...``. The root's attributes are explained in its attribute ``attributes``.
docs/results-file.md holds the same.
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
LEVEL = 1
GZIP: Mapping[str, Any] = {"shuffle": True, "compression": "gzip", "compression_opts": LEVEL}
RANGES: Mapping[str, Any] = {"scaleoffset": 0}
"""HDF5's filter scale-offset, without loss for int64: of each chunk the least value, and so many
bits of each as the range takes. Noise is written in a quarter of gzip's time, and read in half."""
_WRITTEN_ROWS = 8 * CHUNK_ROWS
_DEFLATE_AT_MOST = 1032
_SMALL_BYTES = 2**20


def write_column(file: h5py.File, name: str, values: npt.NDArray[Any]) -> None:
    """Store a column that can grow, packed without loss."""
    long = values.dtype == np.int64 and values.size >= CHUNK_ROWS  # else gzip takes less space
    _new_column(file, name, RANGES if long else GZIP, dtype=values.dtype, data=values)


def _new_column(
    file: h5py.File, name: str, filters: Mapping[str, Any], **values: Any,
) -> h5py.Dataset:
    return file.create_dataset(name, maxshape=(None,), chunks=(CHUNK_ROWS,), **filters, **values)


class GrowingColumn:
    """An int64 column that is written some chunks at a time; `finish` writes what is left."""

    def __init__(self, file: h5py.File, name: str, filters: Mapping[str, Any] = GZIP) -> None:
        self._dataset = _new_column(file, name, filters, dtype="<i8", shape=(0,))
        self._waiting: list[npt.NDArray[np.int64]] = []
        self._n_waiting = 0
        self.rows = 0

    def add(self, values: npt.NDArray[np.int64]) -> None:
        """Append rows; nobody may write into them before `finish`."""
        self._waiting.append(values)
        self._n_waiting += values.size
        self.rows += values.size
        if self._n_waiting >= _WRITTEN_ROWS:
            self.finish()

    def finish(self) -> None:
        if self._waiting:
            self._dataset.resize((self.rows,))
            self._dataset[self.rows - self._n_waiting:] = (
                np.concatenate(self._waiting) if len(self._waiting) > 1 else self._waiting[0])
            self._waiting, self._n_waiting = [], 0


def text_column(texts: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """Return texts as fixed-length UTF-8, which any HDF5 tool reads."""
    encoded = [valid(text).encode() for text in texts]
    width = max((len(item) for item in encoded), default=1)
    return np.array(encoded, dtype=f"S{max(width, 1)}")


def read_column(file: h5py.File, name: str) -> npt.NDArray[Any]:
    """Return a whole column. Raises KeyError if it is not there, ValueError as `_check_bytes`."""
    dataset = h5py.h5d.open(file.id, name.encode())
    _check_bytes(dataset, name, math.prod(dataset.shape) * dataset.dtype.itemsize)
    values = np.empty(dataset.shape, dtype=dataset.dtype)
    dataset.read(h5py.h5s.ALL, h5py.h5s.ALL, values)
    return values


def read_rows(file: h5py.File, name: str, first: int, count: int) -> npt.NDArray[np.int64]:
    """Return ``count`` rows of a column of int64, from row ``first`` on.

    By h5py's lower level, which takes a third of the time. Raises KeyError if the column is not
    there, ValueError if there are no such rows.
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    selection = dataset.get_space()
    if (not dataset.get_type().equal(h5py.h5t.STD_I64LE)
            or selection.get_simple_extent_dims() < (first + count,)):
        raise ValueError(f"{name}: no int64 rows {first} to {first + count}")
    _check_bytes(dataset, name, 8 * count)
    rows = np.empty(count, dtype=np.int64)
    if count:
        selection.select_hyperslab((first,), rows.shape)
        dataset.read(h5py.h5s.create_simple(rows.shape), selection, rows, h5py.h5t.NATIVE_INT64)
    return rows


def _check_bytes(dataset: h5py.h5d.DatasetID, name: str, claimed: int) -> None:
    """Raise ValueError if so many bytes are more than those in the file can hold.

    Deflate packs 1032 bytes into one at most (zlib.net, "Zlib Technical Details").
    """
    if claimed > _SMALL_BYTES and (  # how many bytes there are takes long to say
            claimed > _DEFLATE_AT_MOST * dataset.get_storage_size() + _SMALL_BYTES):
        raise ValueError(f"{name} is said to hold {claimed} bytes, which are not there")


def stored_bytes(file: h5py.File, name: str) -> tuple[str, bytes]:
    """Return a text that tells the length of a column, and its bytes in the file, packed.

    Columns of one name for which both are equal hold the same. Raises KeyError if it is not there.
    """
    dataset = h5py.h5d.open(file.id, name.encode())
    if dataset.get_create_plist().get_layout() != h5py.h5d.CHUNKED or (
            dataset.get_num_chunks() != 1):
        return f"{dataset.dtype.str} {dataset.shape}", read_column(file, name).tobytes()
    mask, packed = dataset.read_direct_chunk((0,) * dataset.rank)
    return f"{dataset.shape} packed {mask}", packed


def texts_of(column: npt.NDArray[Any]) -> list[str]:
    return [item.decode() for item in column.tolist()]


def json_line(value: Any, *, allow_nan: bool = True) -> str:
    """Return the form of all JSON in the files: one line of ASCII without spaces between values.

    Raises ValueError for a number that is not finite, unless they are allowed.
    """
    return to_json(value, separators=(",", ":"), allow_nan=allow_nan)


def write_json(file: h5py.File, name: str, values: Iterable[Any]) -> None:
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
    (text,) = texts_of(column)
    return text.split("\n") if text else []

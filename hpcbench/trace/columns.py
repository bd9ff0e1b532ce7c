"""Columns and texts in HDF5: how both the traces and the results file store them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.packing import LEVEL, pack

CHUNK_ROWS = 2048
"""Reading one case of 200 rows unpacks 16 kB per column; larger chunks hardly pack better."""
Each = Callable[[Callable[[npt.NDArray[np.int64]], bytes], npt.NDArray[np.int64]], Iterable[bytes]]
"""``map``, or what does the same with several threads."""


def write_column(
    file: h5py.File, name: str, values: npt.NDArray[Any], unit: str = ""
) -> h5py.Dataset:
    """Store a column that can grow, packed without loss; ``unit`` becomes an attribute."""
    dataset = file.create_dataset(
        name, data=values, maxshape=(None,), chunks=(CHUNK_ROWS,), shuffle=True,
        compression="gzip", compression_opts=LEVEL)
    if unit:
        dataset.attrs["unit"] = unit
    return dataset


class GrowingColumn:
    """An int64 column that is written piece by piece; `finish` writes what is left of it."""

    def __init__(self, file: h5py.File, name: str, unit: str = "", *, chunk_rows: int) -> None:
        """Create the empty dataset ``name``."""
        self._dataset = file.create_dataset(
            name, shape=(0,), dtype="<i8", maxshape=(None,), chunks=(chunk_rows,), shuffle=True,
            compression="gzip", compression_opts=LEVEL)
        if unit:
            self._dataset.attrs["unit"] = unit
        self._chunk_rows = chunk_rows
        self._pieces: list[npt.NDArray[np.int64]] = []
        self._pending = 0
        self._written = 0
        self._constants: dict[int, bytes] = {}

    @property
    def rows(self) -> int:
        """Return how many rows were appended."""
        return self._written + self._pending

    def append(self, values: npt.NDArray[np.int64], each: Each = map) -> None:
        """Take rows in, which must not change afterwards; whole chunks go to the file.

        ``each`` packs them: a thread pool's ``map`` packs several at once.
        """
        self._pieces.append(values)
        self._pending += values.size
        whole = self._pending - self._pending % self._chunk_rows
        if not whole:
            return
        rows = np.concatenate(self._pieces)
        self._pieces, self._pending = [rows[whole:].copy()], self._pending - whole
        self._dataset.resize((self._written + whole,))
        for packed in each(self._packed, rows[:whole].reshape(-1, self._chunk_rows)):
            self._dataset.id.write_direct_chunk((self._written,), packed)
            self._written += self._chunk_rows

    def _packed(self, chunk: npt.NDArray[np.int64]) -> bytes:
        """Return the packed chunk; one that holds a single value is packed only once."""
        first = int(chunk[0])
        if chunk[-1] != first or np.any(chunk != first):
            return pack(chunk)
        if first not in self._constants:
            self._constants[first] = pack(chunk)
        return self._constants[first]

    def finish(self) -> None:
        """Write the rows behind the last whole chunk."""
        if self._pending:
            self._dataset.resize((self.rows,))
            self._dataset[self._written:] = np.concatenate(self._pieces)


def text_column(texts: Iterable[str]) -> npt.NDArray[np.bytes_]:
    """Return texts as fixed-length UTF-8, which any HDF5 tool reads."""
    encoded = [text.encode() for text in texts]
    width = max((len(item) for item in encoded), default=1)
    return np.array(encoded, dtype=f"S{max(width, 1)}")


def texts_of(dataset: h5py.Dataset) -> list[str]:
    """Return a column that `text_column` made."""
    return [item.decode() for item in dataset[:].tolist()]


def write_text(file: h5py.File, name: str, lines: Sequence[str]) -> None:
    """Store lines of JSON as one packed text."""
    text = "\n".join(lines).encode()
    file.create_dataset(name, data=np.array([text], dtype=f"S{max(len(text), 1)}"),
                        chunks=(1,), compression="gzip", compression_opts=LEVEL)


def read_text(file: h5py.File, name: str) -> str:
    """Return what `write_text` stored. Raises KeyError if it is not there."""
    return str(file[name][0].decode())


def read_lines(file: h5py.File, name: str) -> list[str]:
    """Return the lines that `write_text` stored."""
    text = read_text(file, name)
    return text.split("\n") if text else []

"""The datasets of an open trace: by where their chunks lie if that is known, else by HDF5."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt

from hpcbench.trace.arena import Empty
from hpcbench.trace.chunks import ChunkMemory, StoredColumn
from hpcbench.trace.columns import lines_of, read_column, read_rows, stored_bytes


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

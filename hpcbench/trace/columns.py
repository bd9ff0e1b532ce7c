"""Columns and texts in HDF5: how both the traces and the results file store them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import h5py
import numpy as np
import numpy.typing as npt

CHUNK_ROWS = 2048
"""Reading one case of 200 rows unpacks 16 kB per column; larger chunks hardly pack better."""


def write_column(
    file: h5py.File, name: str, values: npt.NDArray[Any], unit: str = ""
) -> h5py.Dataset:
    """Store a column that can grow, packed without loss; ``unit`` becomes an attribute."""
    dataset = file.create_dataset(
        name, data=values, maxshape=(None,), chunks=(CHUNK_ROWS,), shuffle=True,
        compression="gzip", compression_opts=1)
    if unit:
        dataset.attrs["unit"] = unit
    return dataset


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
                        chunks=(1,), compression="gzip", compression_opts=1)


def read_text(file: h5py.File, name: str) -> str:
    """Return what `write_text` stored. Raises KeyError if it is not there."""
    return str(file[name][0].decode())


def read_lines(file: h5py.File, name: str) -> list[str]:
    """Return the lines that `write_text` stored."""
    text = read_text(file, name)
    return text.split("\n") if text else []

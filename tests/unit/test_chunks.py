"""Columns that are read past HDF5 hold what HDF5 reads, and forged ones are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.trace import chunks
from hpcbench.trace.chunks import ChunkMemory, StoredColumn, held_columns, stored_columns
from hpcbench.trace.columns import CHUNK_ROWS, write_column
from hpcbench.trace.container import new_container

ROWS = 3 * CHUNK_ROWS + 7
STAMPS = np.random.default_rng(0).integers(10**12, 10**13, ROWS)
FLAGS = np.zeros(ROWS, dtype=np.int64)


@pytest.fixture(name="opened")
def opened_file(tmp_path: Path) -> Iterator[tuple[h5py.File, int]]:
    """A sealed file with two columns, open for HDF5 and for reading its bytes."""
    path = tmp_path / "any.h5"
    with new_container(path, "any", 1) as file:
        write_column(file, "samples/start_ns", STAMPS)
        write_column(file, "samples/flags", FLAGS)
    descriptor = os.open(path, os.O_RDONLY)
    with h5py.File(path, "r", locking=False) as file:
        yield file, descriptor
    os.close(descriptor)


def columns_of(opened: tuple[h5py.File, int]) -> dict[str, StoredColumn]:
    found = stored_columns(opened[0], held_columns(opened[0]), opened[1])
    assert found is not None
    return dict(found)


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_pieces_of_any_size_are_the_column(opened: tuple[h5py.File, int], kept_bytes: int) -> None:
    columns, memory = columns_of(opened), ChunkMemory(kept_bytes)
    for name, values in (("start_ns", STAMPS), ("flags", FLAGS)):
        for step in (1000, CHUNK_ROWS, 5000, ROWS):
            found = np.full(ROWS, -5)
            for first in range(0, ROWS, step):
                columns[f"samples/{name}"].read(
                    opened[1], memory, first, found[first:first + step])
            assert np.array_equal(found, values)


def test_chunks_that_lie_apart_are_read_one_by_one(opened: tuple[h5py.File, int]) -> None:
    column, found = columns_of(opened)["samples/start_ns"], np.empty(ROWS, dtype=np.int64)
    assert column.together
    replace(column, together=False).read(opened[1], ChunkMemory(), 0, found)
    assert np.array_equal(found, STAMPS)


def test_a_chunk_that_groups_share_is_unpacked_once(
    opened: tuple[h5py.File, int], monkeypatch: pytest.MonkeyPatch,
) -> None:
    column, memory, unpacked = columns_of(opened)["samples/start_ns"], ChunkMemory(), []
    plain = chunks.unpack
    monkeypatch.setattr(chunks, "unpack", lambda *given: unpacked.append(1) or plain(*given))
    rows = np.empty(500, dtype=np.int64)
    for first in range(0, 4 * 500, 500):
        column.read(opened[1], memory, first, rows)
    assert len(unpacked) == 1
    assert np.array_equal(rows, STAMPS[1500:2000])


def test_rows_that_are_not_there_and_other_bytes_are_refused(
    opened: tuple[h5py.File, int],
) -> None:
    column, memory = columns_of(opened)["samples/start_ns"], ChunkMemory()
    with pytest.raises(ValueError, match="samples 6000 to 6152 of 6151"):
        column.read(opened[1], memory, 6000, np.empty(152, dtype=np.int64))
    wrong = replace(column, offsets=(0,) * 4, together=False)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        wrong.read(opened[1], memory, 0, np.empty(1, dtype=np.int64))
    larger = replace(column, chunk_rows=2 * column.chunk_rows)
    with pytest.raises(ValueError, match="does not hold 4096"):
        larger.read(opened[1], memory, 0, np.empty(1, dtype=np.int64))


def test_columns_stored_in_another_way_are_left_to_hdf5(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "any.h5", "w") as file:
        file["samples/start_ns"] = STAMPS
        assert stored_columns(file, held_columns(file), -1) is None
        del file["samples/start_ns"]
        write_column(file, "samples/start_ns", STAMPS.astype(np.int32))
        assert stored_columns(file, held_columns(file), -1) is None

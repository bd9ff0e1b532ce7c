"""Columns that are read past HDF5 hold what HDF5 reads, and forged ones are refused."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hpcbench.trace import chunks
from hpcbench.trace.chunks import ChunkMemory, StoredColumn
from hpcbench.trace.columns import CHUNK_ROWS, write_column
from hpcbench.trace.container import HEAD_BYTES, new_container
from hpcbench.trace.positions import behind_image, read_positions

ROWS = 3 * CHUNK_ROWS + 7
STAMPS = np.random.default_rng(0).integers(10**12, 10**13, ROWS)
FLAGS = np.zeros(ROWS, dtype=np.int64)


@pytest.fixture(name="descriptor")
def opened_file(tmp_path: Path) -> Iterator[int]:
    """A sealed file with two columns, open for reading."""
    path = tmp_path / "any.h5"
    with new_container(path, "any", 1, behind_image) as file:
        write_column(file, "samples/start_ns", STAMPS)
        write_column(file, "samples/flags", FLAGS)
    descriptor = os.open(path, os.O_RDONLY)
    yield descriptor
    os.close(descriptor)


def columns_of(descriptor: int) -> Mapping[str, StoredColumn]:
    found = read_positions(descriptor, HEAD_BYTES)
    assert found is not None
    return {name: found[name] for name in found}


@pytest.mark.parametrize("kept_bytes", [0, 1 << 20])
def test_pieces_of_any_size_are_the_column(descriptor: int, kept_bytes: int) -> None:
    columns, memory = columns_of(descriptor), ChunkMemory(kept_bytes)
    for name, values in (("start_ns", STAMPS), ("flags", FLAGS)):
        for step in (1000, CHUNK_ROWS, 5000, ROWS):
            found = np.full(ROWS, -5)
            for first in range(0, ROWS, step):
                columns[f"samples/{name}"].read(
                    descriptor, memory, first, found[first:first + step])
            assert np.array_equal(found, values)


def test_chunks_that_lie_apart_are_read_one_by_one(
    descriptor: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    column, reads = columns_of(descriptor)["samples/start_ns"], []
    plain = os.pread
    monkeypatch.setattr(os, "pread", lambda *given: reads.append(1) or plain(*given))
    for most, expected in ((1 << 16, 1), (-1, 4)):
        monkeypatch.setattr(chunks, "_MOST_BETWEEN_BYTES", most)
        reads.clear()
        found = np.empty(ROWS, dtype=np.int64)
        column.read(descriptor, ChunkMemory(), 0, found)
        assert np.array_equal(found, STAMPS)
        assert len(reads) == expected


def test_a_chunk_that_groups_share_is_unpacked_once(
    descriptor: int, monkeypatch: pytest.MonkeyPatch,
) -> None:
    column, memory, unpacked = columns_of(descriptor)["samples/start_ns"], ChunkMemory(), []
    plain = chunks.unpack
    monkeypatch.setattr(chunks, "unpack", lambda *given: unpacked.append(1) or plain(*given))
    rows = np.empty(500, dtype=np.int64)
    for first in range(0, 4 * 500, 500):
        column.read(descriptor, memory, first, rows)
    assert len(unpacked) == 1
    assert np.array_equal(rows, STAMPS[1500:2000])


def test_rows_that_are_not_there_and_other_bytes_are_refused(
    descriptor: int,
) -> None:
    column, memory = columns_of(descriptor)["samples/start_ns"], ChunkMemory()
    with pytest.raises(ValueError, match="samples 6000 to 6152 of 6151"):
        column.read(descriptor, memory, 6000, np.empty(152, dtype=np.int64))
    wrong = replace(column, offsets=(0,) * 4)
    with pytest.raises(ValueError, match="cannot be unpacked"):
        wrong.read(descriptor, memory, 0, np.empty(1, dtype=np.int64))
    larger = replace(column, chunk_rows=2 * column.chunk_rows)
    with pytest.raises(ValueError, match="does not hold 32768 bytes"):
        larger.read(descriptor, memory, 0, np.empty(1, dtype=np.int64))

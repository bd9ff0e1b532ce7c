from __future__ import annotations

import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.reduce.results_file import chunk_rows
from hpcbench.trace.chunks import Packer
from hpcbench.trace.columns import GrowingColumn, write_column


def unpacked(data: bytes, rows: int) -> np.ndarray:
    planes = np.frombuffer(zlib.decompress(data), dtype=np.uint8).reshape(8, rows)
    return np.ascontiguousarray(planes.T).view("<i8").ravel()


@given(seed=st.integers(0, 2**32), bits=st.integers(1, 64), rows=st.integers(1, 3000),
       step=st.integers(0, 2**40))
def test_every_chunk_is_one_whole_zlib_stream(seed: int, bits: int, rows: int, step: int) -> None:
    noise = np.random.default_rng(seed).integers(0, 2**bits, rows, dtype=np.uint64)
    chunk = noise.view(np.int64) + np.arange(rows) * step
    assert np.array_equal(unpacked(Packer().pack(chunk), rows), chunk)


def test_noise_costs_its_own_bytes_and_order_costs_none() -> None:
    stamps = 10**12 + np.cumsum(np.random.default_rng(1).integers(400_000, 900_000, 8192))
    for chunk in (stamps, np.arange(8192), np.full(8192, -1)):
        planes = np.ascontiguousarray(chunk.view(np.uint8).reshape(-1, 8).T)
        deflated = len(zlib.compress(planes, 1))
        assert len(Packer().pack(chunk)) < 1.05 * deflated + 100


def test_a_chunk_that_comes_again_is_packed_once_and_another_is_not_taken_for_it() -> None:
    packer, again = Packer(), np.tile(np.arange(100), 40)
    other = again.copy()
    other[17] += 1  # the last value is as before
    packed = packer.pack(again)
    assert packer.pack(again.copy()) is packed
    assert np.array_equal(unpacked(packer.pack(other), other.size), other)


def test_noise_that_takes_several_blocks_and_a_value_that_is_repeated_are_whole_streams() -> None:
    noise = np.random.default_rng(5).integers(0, 2**20, 140_000)
    assert np.array_equal(unpacked(Packer().pack(noise), noise.size), noise)
    repeated = np.broadcast_to(np.int64(-5), 70_000)
    assert np.array_equal(unpacked(Packer().pack(repeated), 70_000), repeated)


@pytest.mark.parametrize("case_rows", [0, 1, 160, 16384, 16385, 64000, 512_000, 10**9 + 7])
def test_chunks_of_results_begin_where_cases_do(case_rows: int) -> None:
    rows = chunk_rows(case_rows)
    assert 8192 <= rows <= 65536
    if case_rows:
        parts = max(1, round(case_rows / rows))
        assert rows % case_rows == 0 or 0 <= rows * parts - case_rows < parts


@pytest.mark.parametrize("sizes", [[], [0], [5], [100], [99, 1, 100], [1000, 3, 250], [30] * 20])
def test_a_column_written_in_pieces_is_the_whole_column(tmp_path: Path, sizes: list[int]) -> None:
    noise = np.random.default_rng(2)
    pieces = [noise.integers(0, 2**40, size) for size in sizes] + [np.full(300, 7)]
    expected = np.concatenate(pieces)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        column = GrowingColumn(file, "pieces", chunk_rows=100)
        for piece in pieces:
            column.add(piece)
        assert column.rows == expected.size
        column.finish()
        write_column(file, "whole", expected)
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["pieces"][:], expected)
        assert np.array_equal(file["whole"][:], expected)
        assert file["pieces"].dtype == file["whole"].dtype

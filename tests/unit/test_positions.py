"""A trace that tells where its chunks lie is read past HDF5, and holds what HDF5 reads."""

from __future__ import annotations

import os
import zlib
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.trace import sealed
from hpcbench.trace.chunks import ChunkMemory
from hpcbench.trace.columns import CHUNK_ROWS, text_column, write_column, write_json
from hpcbench.trace.container import HEAD_BYTES, new_container
from hpcbench.trace.positions import (
    MAGIC,
    Hdf5Datasets,
    PlacedDatasets,
    behind_image,
    read_positions,
)
from hpcbench.trace.source import UnreadableTrace
from synthetic import make_plan, make_record
from test_sealed import same, write

ROWS = 2 * CHUNK_ROWS + 5
COLUMNS = {
    "samples/start_ns": np.random.default_rng(0).integers(10**12, 10**13, ROWS),
    "cases/none": np.empty(0, dtype=np.int64),
    "cases/case_id": text_column(f"case {number}" for number in range(40)),
    "clock/slope": np.linspace(-1, 1, ROWS),
}


def container_of(path: Path) -> Path:
    with new_container(path, "any", 1, behind_image) as file:
        for name, values in COLUMNS.items():
            write_column(file, name, values)
        write_json(file, "notes", [{"kind": "a", "data": "ü"}] * 3)
    return path


def test_every_column_is_what_hdf5_reads(tmp_path: Path) -> None:
    path = container_of(tmp_path / "any.h5")
    descriptor = os.open(path, os.O_RDONLY)
    positions = read_positions(descriptor, HEAD_BYTES)
    assert positions is not None and set(positions) == {*COLUMNS, "notes"}
    placed = PlacedDatasets(descriptor, positions, ChunkMemory())
    with h5py.File(path, "r", locking=False) as file:
        by_hdf5 = Hdf5Datasets.of(file)
        assert {*by_hdf5.names} == {*COLUMNS, "notes"}
        for name in placed.names:
            expected = by_hdf5.column(name)
            assert placed.column(name).dtype == expected.dtype
            assert np.array_equal(placed.column(name), expected), name
    os.close(descriptor)


def test_nothing_is_said_where_one_dataset_is_stored_in_another_way(tmp_path: Path) -> None:
    with new_container(tmp_path / "any.h5", "any", 1, behind_image) as file:
        write_column(file, "samples/start_ns", COLUMNS["samples/start_ns"])
        file["whole"] = np.arange(5)
    with (tmp_path / "any.h5").open("rb") as stream:
        assert read_positions(stream.fileno(), HEAD_BYTES) is None


def test_a_trace_is_read_without_hdf5_and_the_same_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    path = write(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(sealed, "open_container", lambda path: pytest.fail(f"{path} was opened"))
        found = sealed.open_trace(path)
        records = [*found.records()]
    monkeypatch.setattr(sealed, "read_positions", lambda *given: None)
    by_hdf5 = sealed.open_trace(path)
    assert by_hdf5.columns is None and found.columns is not None
    assert (found.header, found.plan, found.notes, found.damage, found.held) == (
        by_hdf5.header, by_hdf5.plan, by_hdf5.notes, by_hdf5.damage, by_hdf5.held)
    assert all(same(*pair) for pair in zip(records, by_hdf5.records(), strict=True))


def test_a_column_that_has_gone_is_no_crash(tmp_path: Path) -> None:
    trace = sealed.open_trace(write(tmp_path))
    trace.path.write_bytes(trace.path.read_bytes()[:600])
    with pytest.raises(UnreadableTrace, match="not the content expected"):
        [*trace.records()]


def forged(path: Path, line: bytes, length: int | None = None) -> Path:
    """Write a trace with another text behind the image."""
    packed = zlib.compress(line)
    tail = packed + (len(packed) if length is None else length).to_bytes(8, "little") + MAGIC
    with new_container(path, sealed.FORMAT, 2, behind=lambda file: tail):
        pass
    return path


@pytest.mark.parametrize("said", [
    b"no JSON", b"[]", b"{}", b'{"header":1}', b'{"header":[1,2]}',
    b'{"header":["|S9",false,1,1,[0],[1000000]]}', b'{"header":["|S9",false,1,1,[0],[-1]]}',
    b'{"header":["|S9",false,1,1,[-9],[10]]}', b'{"header":["|S9",false,2,1,[0],[10]]}',
    b'{"header":["|S9",false,1,0,[0],[10]]}', b'{"header":["<f4",false,1,1,[0],[10]]}',
    b'{"header":["|O8",false,1,1,[0],[10]]}', b'{"header":["|S9",false,"a",1,[0],[10]]}',
    b'{"header":["|S99999999999999",false,1,1,[0],[10]]}',
    b'{"header":["<i8",true,1000000000000,1000000000000,[0],[10]]}',
    b'{"header":["|S9999999999",false,1,"aa",[0],[1]]}',
    b'{"header":["|S9",false,1,1,[true],[10]]}',
    b'{"header":["<i8",true,4096,2048,[600,600],[500,500]]}',
    b'{"header":["<i8",true,4096,2048,[600,700],[500,500]]}',
    b'{"header":["|S9",false,1,[0],[0],[10]]}'])
def test_a_forged_text_is_one_clear_error(tmp_path: Path, said: bytes) -> None:
    with pytest.raises(UnreadableTrace, match="not the content expected") as caught:
        sealed.open_trace(forged(tmp_path / "rank00000.h5", said))
    assert caught.value.code == "HB103"


@pytest.mark.parametrize("length", [0, 10**6])
def test_a_forged_length_is_one_clear_error(tmp_path: Path, length: int) -> None:
    with pytest.raises(UnreadableTrace, match="not the content expected"):
        sealed.open_trace(forged(tmp_path / "rank00000.h5", b"{}", length))


def test_it_is_a_small_part_of_a_trace(tmp_path: Path) -> None:
    plan = make_plan(n_cases=50, passes=1)
    records = [make_record(case, 0) for case in plan.cases]
    path = write(tmp_path, records)
    tail = int.from_bytes(path.read_bytes()[-len(MAGIC) - 8:-len(MAGIC)], "little")
    assert tail < 2000

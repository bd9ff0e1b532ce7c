from __future__ import annotations

import os
import random
import subprocess
import sys
import zlib
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.errors import FileError
from hpcbench.trace import container
from hpcbench.trace.columns import GZIP, RANGES, Filters, GrowingColumn, write_column
from hpcbench.trace.journal import Journal, read_journal
from hpcbench.trace.schema import SAMPLE_COLUMNS, Record, no_samples
from hpcbench.trace.sealed import FORMAT, SealedTrace, open_trace, seal
from hpcbench.trace.source import UnreadableTrace, was_cut_short
from synthetic import make_header, make_plan, make_record
from synthetic import same_record as same

PLAN = make_plan(n_cases=4, passes=2)
HEADER = make_header(PLAN, 0)
RECORDS = [make_record(case, 0, index) for index in range(2) for case in PLAN.cases]
RECORDS[5] = replace(RECORDS[5], status="failed", reason="rank 1: killed\nü", blamed_rank=1,
                     n_wrong=-1, samples=no_samples(), detail={"stderr": ["a", "b"]})


def write(folder: Path, records: list[Record] = RECORDS, *, end: bool = True) -> Path:
    path = folder / "rank00000.journal"
    path.unlink(missing_ok=True)
    with Journal.create(path, HEADER, PLAN) as journal:
        for record in records:
            journal.append(record)
        if end:
            journal.note("end", {"status": "finished"})
    sealed = path.with_suffix(".h5")
    seal(path, sealed)
    return sealed


def test_holds_what_the_journal_holds(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path))
    journal = read_journal(tmp_path / "rank00000.journal")
    assert (trace.header, trace.plan, trace.notes, trace.damage, trace.case_ids) == (
        journal.header, journal.plan, journal.notes, journal.damage, journal.case_ids)
    assert trace.sealed and not journal.sealed and not was_cut_short(trace)
    assert all(same(*pair) for pair in zip(trace.records(), journal.records(), strict=True))


def test_no_data_set_is_virtual_or_external(tmp_path: Path) -> None:
    """Their numbers would lie in files that no checksum covers, and read as 0 without them."""
    seen = []

    def visit(name: str, item: object) -> None:
        if isinstance(item, h5py.Dataset):
            seen.append(name)
            assert not item.is_virtual and item.external is None, name

    with container.open_container(write(tmp_path)) as file:
        file.visititems(visit)
    assert len(seen) > 5


def test_reads_one_case_alone_and_records_without_samples(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path))
    wanted = {RECORDS[2].case_id, RECORDS[3].case_id}
    found = list(trace.records(wanted))
    assert all(same(*pair) for pair in zip(
        found, [RECORDS[2], RECORDS[3], RECORDS[6], RECORDS[7]], strict=True))
    assert [len(record.samples) for record in trace.records(samples=False)] == [0] * 8
    assert list(trace.records(())) == []


def test_a_rank_without_a_case_is_a_whole_trace(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path, []))
    assert list(trace.records()) == [] and trace.case_ids == frozenset()


def test_a_recovered_journal_is_marked(tmp_path: Path) -> None:
    path = tmp_path / "rank00000.journal"
    write(tmp_path, end=False)
    path.write_bytes(path.read_bytes()[:-10])
    seal(path, tmp_path / "rank00000.h5")
    trace = open_trace(tmp_path / "rank00000.h5")
    assert was_cut_short(trace) and [item.torn for item in trace.damage] == [True]
    assert all(same(*pair) for pair in zip(trace.records(), RECORDS[:-1], strict=True))
    with h5py.File(trace.path) as file:
        assert file.attrs["recovered"]


def test_it_begins_as_hdf5_and_its_first_dataset_proves_it(tmp_path: Path) -> None:
    """Many readers look for HDF5 at byte 0 only; to open and close it changes nothing."""
    path = write(tmp_path)
    data = path.read_bytes()
    with h5py.File(path, "r+", locking=False) as file:
        offset = file[container.SEAL].id.get_offset()
        (seal,) = file[container.SEAL][:]
    assert data.startswith(b"\x89HDF\r\n\x1a\n") and path.read_bytes() == data
    others = data[:offset] + data[offset + container.SEAL_BYTES:]
    text = f"format {FORMAT}\nschema_version 2\npayload_bytes {len(others)}\n"
    crc = zlib.crc32(others, zlib.crc32(text.encode()))
    assert seal.decode().rstrip("\n") == f"{text}crc32 {crc:08x}"


def test_any_hdf5_tool_opens_it_and_finds_units(tmp_path: Path) -> None:
    with h5py.File(write(tmp_path), "r") as file:
        assert file.userblock_size == 0
        assert (file.attrs["format"], file.attrs["schema_version"]) == (FORMAT, 2)
        assert file.attrs["run_id"] == "run-1" and not file.attrs["recovered"]
        assert file["cases/case_id"].asstr()[0] == PLAN.cases[0].case_id
        for name in ("samples/start_ns", "samples/end_ns", "samples/enqueue_ns",
                     "samples/device_ns", "cases/begin_ns", "cases/communicator_ns"):
            assert file[name].attrs["units"] == "ns"
        rows = file["samples/case"][:] == 2
        expected = RECORDS[2].samples.columns()
        found = [file[f"samples/{name}"][rows] for name in SAMPLE_COLUMNS]
        assert np.array_equal(expected, found)
        assert file["clock/slope"].shape == (0,) and file["clock/bound_ns"].attrs["units"] == "ns"


@pytest.mark.parametrize("locking", [None, False, True])
def test_a_file_that_is_open_here_is_to_be_closed(tmp_path: Path, locking: bool | None) -> None:
    path = write(tmp_path)
    with h5py.File(path, locking=locking) as file:
        with pytest.raises(UnreadableTrace, match="close it there"):
            open_trace(path)
        assert file.id.valid
    assert accepted(path)


def accepted(path: Path) -> SealedTrace | None:
    try:
        return open_trace(path)
    except UnreadableTrace as error:
        assert error.code in ("HB103", "HB111", "HB136")
        return None


def test_every_flipped_bit_is_found_before_hdf5_sees_it(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    path, generator = tmp_path / "flip.h5", random.Random(3)
    positions = [*range(1000), *(generator.randrange(len(data)) for _ in range(1000))]
    for position in positions:
        changed = bytearray(data)
        changed[position] ^= 1 << generator.randrange(8)
        path.write_bytes(changed)
        assert accepted(path) is None, position


def test_every_truncation_and_every_extension_is_found(tmp_path: Path) -> None:
    data = write(tmp_path).read_bytes()
    path = tmp_path / "cut.h5"
    for length in [*range(0, 1000, 13), *random.Random(4).sample(range(len(data)), 200)]:
        path.write_bytes(data[:length])
        with pytest.raises(UnreadableTrace, match="truncated, at least") as caught:
            open_trace(path)
        assert caught.value.code == "HB136"
    path.write_bytes(data + b"\n")
    assert accepted(path) is None


@pytest.mark.parametrize("content", [b"hello", b"\x89HDF\r\n\x1a\n" + bytes(600), bytes(4096)])
def test_a_foreign_file_is_one_clear_error(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "rank00000.h5"
    path.write_bytes(content)
    with pytest.raises(UnreadableTrace, match="not a hpcbench-trace file") as caught:
        open_trace(path)
    assert caught.value.code == "HB103"


def test_a_plain_hdf5_file_and_a_results_file_are_foreign(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "plain.h5", "w") as file:
        file.attrs["format"] = FORMAT
    with container.new_container(tmp_path / "other.h5", "hpcbench-results", 1) as file:
        file.attrs["format"] = FORMAT
    for name in ("plain.h5", "other.h5"):
        with pytest.raises(UnreadableTrace, match="not a hpcbench-trace file"):
            open_trace(tmp_path / name)


def test_a_sealed_file_without_the_content_is_one_clear_error(tmp_path: Path) -> None:
    with container.new_container(tmp_path / "empty.h5", FORMAT, 2):
        pass
    with pytest.raises(UnreadableTrace, match="not the content expected") as caught:
        open_trace(tmp_path / "empty.h5")
    assert caught.value.code == "HB103"


@pytest.mark.parametrize(("name", "values"), [
    ("cases/case_id", None), ("cases/n_wrong", None), ("samples/end_ns", None),
    ("cases/status", [b"fine"] * 8), ("cases/status", [1] * 8), ("cases/mode", [b"m"] * 7),
    ("cases/launch", [0.5] * 8), ("cases/launch", [0] * 9), ("cases/detail", [b"{}"] * 8),
    ("cases/detail", [b"[1]" + 7 * b"\n{}"]), ("cases/detail", [b"\n".join([b"{}"] * 8)]),
    ("cases/sample_offset", [-7] * 8), ("cases/sample_offset", [10**6] * 8),
    ("samples/start_ns", [b"a"] * 49), ("samples/start_ns", [1] * 40)])
def test_a_sealed_file_with_other_content_is_one_clear_error(
    tmp_path: Path, name: str, values: list[object] | None
) -> None:
    with h5py.File(write(tmp_path)) as sealed, \
            container.new_container(tmp_path / "forged.h5", FORMAT, 2) as forged:
        for part in set(sealed) - {container.SEAL}:
            sealed.copy(part, forged)
        del forged[name]
        if values is not None:
            forged[name] = values
    with pytest.raises(UnreadableTrace, match="not the content expected") as caught:
        [*open_trace(tmp_path / "forged.h5").records()]
    assert caught.value.code == "HB103"


def external_link(forged: h5py.File, secret: Path) -> None:
    forged["cases/case_id"] = h5py.ExternalLink(str(secret), "/text")


def external_group(forged: h5py.File, secret: Path) -> None:
    forged["cases"] = h5py.ExternalLink(str(secret), "/")


def soft_link(forged: h5py.File, secret: Path) -> None:
    forged["cases/case_id"] = h5py.SoftLink("/cases/status")


def external_storage(forged: h5py.File, secret: Path) -> None:
    forged.create_dataset("cases/case_id", (8,), "S4", external=[(str(secret), 0, 32)])


def virtual_data(forged: h5py.File, secret: Path) -> None:
    layout = h5py.VirtualLayout((8,), "S4")
    layout[:] = h5py.VirtualSource(str(secret), "text", shape=(8,), dtype="S4")
    forged.create_virtual_dataset("cases/case_id", layout)


@pytest.mark.parametrize("forge", [
    external_link, external_group, soft_link, external_storage, virtual_data])
def test_data_that_lie_elsewhere_are_refused_before_they_are_read(
    tmp_path: Path, forge: Callable[[h5py.File, Path], None],
) -> None:
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["text"] = [b"asdf"] * 8
    with h5py.File(write(tmp_path)) as sealed, \
            container.new_container(tmp_path / "forged.h5", FORMAT, 2) as forged:
        for part in set(sealed) - {container.SEAL}:
            sealed.copy(part, forged)
        del forged["cases" if forge is external_group else "cases/case_id"]
        forge(forged, secret)
    secret.unlink()
    os.mkfifo(secret)  # whoever opens it waits for ever
    with pytest.raises(UnreadableTrace, match="cases") as caught:
        open_trace(tmp_path / "forged.h5")
    assert caught.value.code == "HB103"
    with container.open_container(tmp_path / "forged.h5") as file:
        container.check_content(file, tmp_path / "forged.h5", ["header", "samples/start_ns"])
        with pytest.raises(UnreadableTrace, match="cases"):
            container.check_content(file, tmp_path / "forged.h5", ["header", "cases/case_id"])


def test_ranks_share_what_they_have_in_common(tmp_path: Path) -> None:
    path, known = write(tmp_path), {}
    first = open_trace(path, known).table
    late = [replace(record, end_ns=record.end_ns + 1) for record in RECORDS]
    second = open_trace(write(tmp_path, late), known).table
    assert first.texts["case_id"] is second.texts["case_id"]
    assert first.details is second.details and first.rows_of is second.rows_of
    assert (second.integers["end_ns"] - first.integers["end_ns"]).tolist() == [1] * len(RECORDS)


def test_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    with container.new_container(tmp_path / "new.h5", FORMAT, 7):
        pass
    with pytest.raises(UnreadableTrace, match="version 7.*reads 2: .*newer") as caught:
        open_trace(tmp_path / "new.h5")
    assert caught.value.code == "HB104"


def test_a_column_that_has_gone_is_no_crash(tmp_path: Path) -> None:
    trace = open_trace(write(tmp_path))
    trace.path.write_bytes(trace.path.read_bytes()[:600])
    with pytest.raises(UnreadableTrace, match="HDF5 cannot open it"):
        [*trace.records()]


@pytest.mark.parametrize("bits", [1, 40, 62, 64])
@pytest.mark.parametrize("filters", [GZIP, RANGES], ids=["gzip", "ranges"])
@pytest.mark.parametrize("sizes", [
    [], [0], [5], [2048], [2047, 1, 2048], [20480, 3, 5000], [600] * 60])
def test_a_column_written_in_pieces_is_the_whole_column(
    tmp_path: Path, sizes: list[int], filters: Filters, bits: int,
) -> None:
    noise = np.random.default_rng(2)
    pieces = [noise.integers(-2**(bits - 1), 2**(bits - 1), size) for size in sizes]
    pieces += [np.full(300, 7), np.array([0, -1, -2**63, 2**63 - 1])]
    expected = np.concatenate(pieces)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        column = GrowingColumn(file, "pieces", filters)
        for piece in pieces:
            column.add(piece)
        assert column.rows == expected.size
        column.finish()
        write_column(file, "whole", expected)
    with h5py.File(tmp_path / "a.h5") as file:
        assert np.array_equal(file["pieces"][:], expected)
        assert np.array_equal(file["whole"][:], expected)
        assert file["pieces"].dtype == file["whole"].dtype


def test_a_named_pipe_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "rank00000.h5")
    with pytest.raises(UnreadableTrace, match="not a regular file"):
        open_trace(tmp_path / "rank00000.h5")


def test_an_error_while_writing_leaves_the_old_file(tmp_path: Path) -> None:
    path = write(tmp_path)
    before = path.read_bytes()
    with pytest.raises(KeyError), container.new_container(path, FORMAT, 1):
        raise KeyError("caller")
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["rank00000.h5", "rank00000.journal"]
    with pytest.raises(FileError, match="cannot be written: No such file"):
        seal(tmp_path / "rank00000.journal", tmp_path / "none" / "a.h5")


LIMITED = """
import resource, signal, sys
from pathlib import Path
from hpcbench.errors import FileError
from hpcbench.trace.sealed import seal
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
journal = Path(sys.argv[1])
for limit in map(int, sys.argv[2:]):
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, resource.RLIM_INFINITY))
    try:
        seal(journal, journal.with_name("limited.h5"))
    except FileError as error:
        assert "cannot be written: File too large" in str(error), error
        assert not list(journal.parent.glob("*.part"))
    else:
        print("whole at", limit)
"""


def test_a_full_disk_is_an_error_and_no_crash(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk; HDF5 alone crashes the process there."""
    size = write(tmp_path).stat().st_size
    limits = [0, 100, 512, *range(600, size, 1511), size - 1, size]
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path / "rank00000.journal"), *map(str, limits)],
        capture_output=True, text=True, timeout=60, cwd=Path(__file__).parents[2])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == f"whole at {size}\n"
    assert open_trace(tmp_path / "limited.h5").case_ids == frozenset(
        case.case_id for case in PLAN.cases)

from __future__ import annotations

import errno
import os
import random
import resource
import signal
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hpcbench.errors import FileError
from hpcbench.trace.journal import (
    HEAD_BYTES,
    Frame,
    Journal,
    JournalTrace,
    Kind,
    read_journal,
    scan,
)
from hpcbench.trace.schema import Record
from hpcbench.trace.source import UnreadableTrace, was_cut_short
from synthetic import make_header, make_plan, make_record, with_rows
from synthetic import same_record as same

PLAN = make_plan(n_cases=4)
HEADER = make_header(PLAN, 0)
RECORDS = [make_record(case, 0) for case in PLAN.cases]


def write(path: Path, records: list[Record], *, end: bool = True) -> Path:
    with Journal.create(path, HEADER, PLAN) as journal:
        for record in records:
            journal.append(record)
        if end:
            journal.note("end", {"status": "finished"})
    return path


def records_of(journal: JournalTrace) -> dict[str, Record]:
    return {record.case_id: record for record in journal.records()}


def test_reads_back_what_was_written(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path / "a.journal", RECORDS))
    assert journal.header == HEADER
    assert journal.plan == PLAN
    assert [note.kind for note in journal.notes] == ["end"]
    assert journal.damage == () and not was_cut_short(journal)
    assert all(same(*pair) for pair in zip(journal.records(), RECORDS, strict=True))


def test_reads_one_case_alone_and_records_without_samples(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path / "a.journal", RECORDS))
    wanted = RECORDS[2].case_id
    (record,) = journal.records({wanted})
    assert same(record, RECORDS[2])
    assert [len(record.samples) for record in journal.records(samples=False)] == [0] * 4


@given(text=st.text(), detail=st.dictionaries(st.text(), st.integers() | st.text(), max_size=3),
       rows=st.lists(st.tuples(*[st.integers(-2**63, 2**63 - 1)] * 5), max_size=5))
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_any_text_and_any_int64_survive(
    tmp_path: Path, text: str, detail: dict[str, object], rows: list[tuple[int, ...]]
) -> None:
    path = tmp_path / "any.journal"
    path.unlink(missing_ok=True)
    samples = np.array(rows, dtype=np.int64).reshape(-1, 5)
    record = replace(with_rows(RECORDS[0], samples), reason=text, detail=detail)
    (back,) = read_journal(write(path, [record])).records()
    assert same(back, record)


def test_an_existing_journal_is_not_touched(tmp_path: Path) -> None:
    path = write(tmp_path / "a.journal", RECORDS)
    before = path.read_bytes()
    with pytest.raises(FileError, match="exists already"):
        Journal.create(path, HEADER)
    assert path.read_bytes() == before


def test_a_missing_folder_is_one_clear_error(tmp_path: Path) -> None:
    with pytest.raises(FileError, match="No such file"):
        Journal.create(tmp_path / "none" / "a.journal", HEADER)


def test_a_journal_that_cannot_be_begun_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(descriptor: int, data: bytes) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("hpcbench.trace.journal.write_all", full)
    with pytest.raises(FileError, match="No space left on device") as refused:
        write(tmp_path / "rank00000.journal", [])
    assert not list(tmp_path.iterdir()) and "safe" not in str(refused.value)


def test_a_record_outside_the_schema_is_refused(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "a.journal", HEADER) as journal:
        with pytest.raises(ValueError, match="no status"):
            journal.append(replace(RECORDS[0], status="fine"))
        with pytest.raises(ValueError, match="int64"):
            journal.append(with_rows(RECORDS[0], np.zeros((3, 4), dtype=np.int32)))


def test_every_truncation_keeps_the_frames_before_it(tmp_path: Path) -> None:
    data = write(tmp_path / "a.journal", RECORDS).read_bytes()
    frames = [frame for frame in scan(data) if isinstance(frame, Frame)]
    cut = tmp_path / "cut.journal"
    for length in random.Random(1).sample(range(frames[1].end, len(data)), 300):
        cut.write_bytes(data[:length])
        journal = read_journal(cut)
        whole = [frame for frame in frames if frame.end <= length]
        assert len(list(journal.records())) == sum(frame.kind == Kind.RECORD for frame in whole)
        assert all(same(record, RECORDS[at]) for at, record in enumerate(journal.records()))
        assert was_cut_short(journal)
        assert bool(journal.damage) == (whole[-1].end != length)
        assert all(item.torn for item in journal.damage)


def test_a_flipped_bit_costs_one_frame_and_is_reported(tmp_path: Path) -> None:
    data = write(tmp_path / "a.journal", RECORDS).read_bytes()
    path, generator = tmp_path / "flip.journal", random.Random(2)
    for _ in range(2000):
        position, bit = generator.randrange(len(data)), generator.randrange(8)
        changed = bytearray(data)
        changed[position] ^= 1 << bit
        path.write_bytes(changed)
        journal = read_journal(path)
        assert journal.damage and was_cut_short(journal)
        assert journal.header == HEADER
        found = records_of(journal)
        assert len(found) >= 3
        assert all(same(found[item.case_id], item) for item in RECORDS if item.case_id in found)


@given(junk=st.binary(max_size=300), at=st.integers(0, 4))
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_junk_between_frames_hides_none_of_them(tmp_path: Path, junk: bytes, at: int) -> None:
    source = tmp_path / "a.journal"
    source.unlink(missing_ok=True)
    data = write(source, RECORDS).read_bytes()
    frames = [frame for frame in scan(data) if isinstance(frame, Frame)]
    place = frames[2 + at].offset
    source.write_bytes(data[:place] + junk + data[place:])
    journal = read_journal(source)
    assert len(records_of(journal)) == 4
    assert bool(journal.damage) == bool(junk)


@given(st.binary(max_size=200))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_foreign_file_is_one_clear_error(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "foreign.journal"
    path.write_bytes(data)
    with pytest.raises(UnreadableTrace, match="not an hpcbench journal") as caught:
        read_journal(path)
    assert caught.value.code == "HB103"


def test_a_later_version_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "new.journal"
    Journal.create(path, replace(HEADER, schema_version=3)).close()
    with pytest.raises(UnreadableTrace, match="version 3.*reads 2: use") as caught:
        read_journal(path)
    assert caught.value.code == "HB104"


def test_a_named_pipe_or_folder_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(UnreadableTrace, match="not a regular file"):
            read_journal(path)


def test_a_failed_append_is_cut_off_and_the_next_one_is_whole(tmp_path: Path) -> None:
    """A file size limit stands in for a full disk: the same short write, then the same error."""
    path = tmp_path / "a.journal"
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.getsignal(signal.SIGXFSZ)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        with Journal.create(path, HEADER) as journal:
            journal.append(RECORDS[0])
            size = path.stat().st_size
            resource.setrlimit(resource.RLIMIT_FSIZE, (size + HEAD_BYTES + 40, old[1]))
            with pytest.raises(FileError, match="too large; 1 records .* are safe"):
                journal.append(RECORDS[1])
            assert path.stat().st_size == size
            resource.setrlimit(resource.RLIMIT_FSIZE, old)
            journal.append(RECORDS[2])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    back = read_journal(path)
    assert back.damage == ()
    assert list(records_of(back)) == [RECORDS[0].case_id, RECORDS[2].case_id]


@pytest.mark.parametrize(("n_kept", "extra"), [(2, b""), (1, b"\0" * 3), (0, b""), (3, b"junk")])
def test_a_journal_that_another_program_changes_ends_the_run_and_is_counted_by_reading_it(
    tmp_path: Path, n_kept: int, extra: bytes,
) -> None:
    """The next write would leave a hole that hides nothing but the loss."""
    path = tmp_path / "run" / "traces" / "a.journal"
    path.parent.mkdir(parents=True)
    with Journal.create(path, HEADER) as journal:
        ends = [path.stat().st_size]
        for record in RECORDS[:3]:
            journal.append(record)
            ends.append(path.stat().st_size)
        changed = path.read_bytes()[:ends[n_kept]] + extra
        path.write_bytes(changed)
        with pytest.raises(FileError, match=f"from {ends[-1]} to {len(changed)} bytes") as caught:
            journal.append(RECORDS[3])
        assert ("3 records (" in str(caught.value)) == (n_kept == 3)
        assert ("nothing" in journal.to_see(tmp_path / "run")) == (n_kept == 0)
    assert path.read_bytes() == changed
    assert list(records_of(read_journal(path))) == [item.case_id for item in RECORDS[:n_kept]]


def test_a_run_whose_folder_moves_ends_and_names_the_new_place(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    (old / "traces").mkdir(parents=True)
    with Journal.create(old / "traces" / "a.journal", HEADER) as journal:
        journal.append(RECORDS[0])
        old.rename(new)
        with pytest.raises(FileError, match=f"moved to {new}/traces/a.journal"):
            journal.append(RECORDS[1])
        assert f"reduce {new}" in journal.to_see(old)
    assert len(records_of(read_journal(new / "traces" / "a.journal"))) == 2  # more than it said

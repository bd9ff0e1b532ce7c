"""Every check of whole trace files, provoked (docs/checks.md)."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.errors import ExitCode
from hpcbench.reduce.reduce import exit_code, reduce_folder
from hpcbench.reduce.results import Finding, Results
from hpcbench.trace.container import new_container
from hpcbench.trace.schema import Header
from hpcbench.trace.sealed import FORMAT
from hpcbench.units import rank_list
from synthetic import (
    make_header,
    make_plan,
    make_record,
    write_synthetic_rank,
    write_synthetic_run,
)

PLAN = make_plan(n_cases=2, world_size=3, iterations=20)


def only(results: Results, code: str) -> list[Finding]:
    return [item for item in results.findings if item.code == code]


def of_rank(rank: int, **changes: object) -> Callable[[Header], Header]:
    def headers(header: Header) -> Header:
        return replace(header, **changes) if header.rank == rank else header  # type: ignore[arg-type]
    return headers


def assert_left_out(results: Results, code: str, *parts: str) -> None:
    """One rank was left out with this code, so every case fails and says which rank.

    A trace that is missing may still come: the results are incomplete. All others are wrong.
    """
    (finding,) = only(results, code)
    assert finding.scope == "rank"
    assert all(part in finding.message for part in parts), finding.message
    assert results.run.ranks_present == (0, 2)
    assert [item.status for item in results.cases] == ["failed"] * 2
    assert all(item.statistics is None and "rank 1" in item.reason for item in results.cases)
    assert exit_code(results) is (
        ExitCode.INCOMPLETE if code == "HB101" else ExitCode.FINDINGS)


def write(folder: Path, headers: Callable[[Header], Header] | None = None) -> Path:
    return write_synthetic_run(folder, PLAN, headers=headers)


def newer(path: Path) -> None:
    with new_container(path, FORMAT, 3):
        pass


def with_a_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 16
    path.write_bytes(data)


@pytest.mark.parametrize(("code", "spoil", "parts"), [
    ("HB101", Path.unlink, ("1 of 3 ranks (1)", "rank00001.h5")),
    ("HB104", newer, ("rank00001.h5", "version 3", "reads 2: ")),
    ("HB108", lambda path: path.rename(path.with_name("rank00003.h5")),
     ("rank 1 (rank00003.h5)", "name it rank00001.h5")),
    ("HB111", with_a_flip, ("rank00001.h5", "CRC mismatch")),
    ("HB136", lambda path: path.write_bytes(path.read_bytes()[:-100]),
     ("rank00001.h5", "at least 100 bytes are missing")),
    *(("HB103" if content or suffix != ".h5" else "HB136", lambda path, c=content, s=suffix: (
        path.unlink(), path.with_suffix(s).write_bytes(c)), (f"rank00001{suffix}", "left out"))
      for suffix in (".h5", ".journal")
      for content in (b"", b"hello", bytes(5000), b"\x89HDF\r\n\x1a\n" * 200)),
])
def test_a_trace_of_no_use_leaves_its_rank_out(
    tmp_path: Path, code: str, spoil: Callable[[Path], object], parts: tuple[str, ...],
) -> None:
    spoil(write(tmp_path / "run") / "rank00001.h5")
    assert_left_out(reduce_folder(tmp_path / "run"), code, *parts)


@pytest.mark.parametrize(("code", "changes", "parts"), [
    ("HB105", {"run_id": "run-old"}, ("run-old", "run-1")),
    ("HB106", {"plan_hash": "ffff"}, ("ffff", PLAN.plan_hash)),
    ("HB108", {"world_size": 8}, ("world of 8", "3 ranks"))])
def test_a_trace_of_another_run_leaves_its_rank_out(
    tmp_path: Path, code: str, changes: dict[str, Any], parts: tuple[str, ...],
) -> None:
    write(tmp_path / "run", of_rank(1, **changes))
    results = reduce_folder(tmp_path / "run")
    assert_left_out(results, code, "rank 1 (rank00001.h5)", *parts)
    assert results.run.run_id == "run-1"


def test_hb101_ranks_with_disks_of_their_own(tmp_path: Path) -> None:
    """Rank 0 noted where they write, so the way there is told: of those only that are missing."""
    apart = {"1": ["n7", "/scratch/run.on-n7"], "2": ["n8", "/tmp/hpcbench-run-1"]}
    traces = write_synthetic_run(tmp_path / "run", PLAN, notes=lambda rank: (
        [("apart", apart)] if rank == 0 else []))
    (traces / "rank00001.h5").unlink()
    results = reduce_folder(tmp_path / "run")
    assert_left_out(results, "HB101", "1 of 3 ranks (1)",
                    "copy /scratch/run.on-n7/traces/rank00001.* on host n7 here and")


def test_hb102_duplicate_rank(tmp_path: Path) -> None:
    traces = write(tmp_path / "run")
    shutil.copy(traces / "rank00001.h5", traces / "rank00004.h5")
    results = reduce_folder(tmp_path / "run")
    found = only(results, "HB102")
    assert ["rank00001.h5" in item.message for item in found] == [True, False]
    assert "2 files claim this rank" in found[0].message and "host0 pid 1001" in found[0].message
    assert results.run.ranks_present == (0, 2)


def test_hb103_things_that_are_no_traces(tmp_path: Path) -> None:
    traces = write(tmp_path / "run")
    (traces / ".rank00001.h5.17.part").write_bytes(b"half")
    (traces / "notes.txt").write_text("mine", encoding="utf-8")
    (traces / "folder").mkdir()
    shutil.copy(traces / "rank00001.h5", traces / "rank00001.journal")
    os.mkfifo(traces / "rank00009.h5")
    results = reduce_folder(tmp_path / "run")
    found = {item.message.split(":")[0].rpartition("/")[2]: item.scope
             for item in only(results, "HB103")}
    assert found == {".rank00001.h5.17.part": "note", "notes.txt": "note", "folder": "note",
                     "rank00001.journal": "note", "rank00009.h5": "note"}
    assert [item.status for item in results.cases] == ["ok"] * 2


def test_hb107_mixed_versions(tmp_path: Path) -> None:
    write(tmp_path / "run", of_rank(1, versions={"hpcbench": "0.1", "torch": "2.9"}))
    results = reduce_folder(tmp_path / "run")
    assert_left_out(results, "HB107", "torch 2.9 (others 2.0)", "host0", "--allow-mixed")
    mixed = reduce_folder(tmp_path / "run", allow_mixed=True)
    assert [item.scope for item in only(mixed, "HB107")] == ["note"]
    assert [item.status for item in mixed.cases] == ["ok"] * 2
    assert exit_code(mixed) is ExitCode.OK


def test_hb107_but_not_for_what_a_crash_made_unknown(tmp_path: Path) -> None:
    one = {"hpcbench": "0.1", "torch": "unknown"}
    write(tmp_path / "run", of_rank(1, versions=one))
    assert not only(reduce_folder(tmp_path / "run"), "HB107")


def test_hb108_rank_outside_the_world(tmp_path: Path) -> None:
    traces = write(tmp_path / "run")
    write_synthetic_rank(traces, PLAN, make_header(PLAN, 7), rank=7)
    results = reduce_folder(tmp_path / "run")
    assert [item.message.split(":")[0] for item in only(results, "HB108")] == [
        "rank 7 (rank00007.h5)"]
    assert [item.status for item in results.cases] == ["ok"] * 2


def test_hb108_two_ranks_in_one_place(tmp_path: Path) -> None:
    write(tmp_path / "run", of_rank(1, local_rank=2))
    results = reduce_folder(tmp_path / "run")
    assert ["ranks 1-2 all claim node node0 local rank 2" in item.message
            for item in only(results, "HB108")] == [True, True]
    assert results.run.ranks_present == (0,)


def test_hb110_unsealed_and_torn(tmp_path: Path) -> None:
    traces = write_synthetic_run(tmp_path / "run", PLAN, sealed=False, end=False)
    journal = traces / "rank00001.journal"
    journal.write_bytes(journal.read_bytes()[:-5])
    results = reduce_folder(tmp_path / "run")
    messages = [item.message for item in only(results, "HB110")]
    assert [text.split(":")[0] for text in messages] == [
        f"rank {rank} (rank0000{rank}.journal)" for rank in range(3)]
    assert "1 cases recovered; from byte" in messages[1] and "last 5 bytes" in messages[1]
    assert [item.status for item in results.cases] == ["ok", "not_run"]
    assert exit_code(results) is ExitCode.INCOMPLETE


def test_hb110_sealed_after_a_crash(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path / "run", PLAN, end=False)
    results = reduce_folder(tmp_path / "run")
    assert ["was sealed after a crash" in item.message
            for item in only(results, "HB110")] == [True] * 3
    assert [item.status for item in results.cases] == ["ok"] * 2
    assert exit_code(results) is ExitCode.INCOMPLETE


def test_hb111_changed_journal(tmp_path: Path) -> None:
    traces = write_synthetic_run(tmp_path / "run", PLAN, sealed=False)
    journal = traces / "rank00001.journal"
    data = bytearray(journal.read_bytes())
    data[data.find(PLAN.cases[1].case_id.encode())] ^= 1
    journal.write_bytes(data)
    results = reduce_folder(tmp_path / "run")
    (finding,) = only(results, "HB111")
    assert "rank 1 (rank00001.journal): at byte" in finding.message and finding.scope == "rank"
    assert [item.status for item in results.cases] == ["ok", "failed"]
    assert "no record of it on rank 1" in results.cases[1].reason


def test_hb111_a_record_that_the_only_rank_lost_is_not_called_not_reached(tmp_path: Path) -> None:
    plan = make_plan(n_cases=2, world_size=1, iterations=20)
    journal = write_synthetic_run(tmp_path / "run", plan, sealed=False) / "rank00000.journal"
    data = bytearray(journal.read_bytes())
    data[data.rfind(plan.cases[1].case_id.encode())] ^= 1
    journal.write_bytes(data)
    results = reduce_folder(tmp_path / "run")
    assert [item.status for item in results.cases] == ["ok", "not_run"]
    assert "damaged" in results.cases[1].reason
    assert [item.scope for item in only(results, "HB111")] == ["rank"]


@pytest.mark.parametrize("n_sealed", [1, 2])
def test_hb103_a_journal_can_be_deleted_only_if_the_sealed_trace_has_its_records(
    tmp_path: Path, n_sealed: int,
) -> None:
    whole = write_synthetic_run(tmp_path / "whole", PLAN, sealed=False)
    kept = {case.case_id for case in PLAN.cases[:n_sealed]}
    traces = write_synthetic_run(tmp_path / "run", PLAN, change=lambda rank, record: (
        [record] if record.case_id in kept else []))
    shutil.copy(whole / "rank00001.journal", traces)
    (finding,) = only(reduce_folder(tmp_path / "run"), "HB103")
    assert finding.scope == "note"
    assert ("can be deleted" in finding.message) == (n_sealed == 2)
    assert ("lacks 1 record" in finding.message) == (n_sealed == 1)


def test_hb112_case_that_is_not_planned(tmp_path: Path) -> None:
    other = make_plan(n_cases=3, world_size=3, iterations=20)
    write_synthetic_run(tmp_path / "run", PLAN, change=lambda rank, record: (
        record, replace(make_record(other.cases[2], rank))))
    results = reduce_folder(tmp_path / "run")
    assert ["1 case not in the plan" in item.message
            for item in only(results, "HB112")] == [True] * 3
    assert [item.status for item in results.cases] == ["ok"] * 2


def test_a_damaged_sealed_trace_is_replaced_by_its_journal(tmp_path: Path) -> None:
    traces = write_synthetic_run(tmp_path / "run", PLAN, sealed=False)
    (traces / "rank00001.h5").write_bytes(b"hello")
    results = reduce_folder(tmp_path / "run")
    assert [item.message.split(":")[0].rpartition("/")[2] for item in only(results, "HB103")] == [
        "rank00001.h5"]
    assert [item.status for item in results.cases] == ["ok"] * 2


@pytest.mark.parametrize(("ranks", "text"), [
    ([], ""), ([3], "3"), ([1, 2], "1-2"), ([5, 0, 1, 2, 7], "0-2, 5, 7")])
def test_ranks_are_named_briefly(ranks: list[int], text: str) -> None:
    assert rank_list(ranks) == text

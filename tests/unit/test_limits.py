"""Limits on files of others: what is beyond them is one line, and is read once they are raised."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from bad_input_process import hpcbench
from bad_inputs import places
from golden import RUNS
from hpcbench import limits
from hpcbench.errors import FileError, TraceError
from hpcbench.interop.anonymize import copy_text
from hpcbench.interop.formats.reading import source
from hpcbench.interop.pseudonyms import Pseudonyms
from hpcbench.interop.traffic import calls
from hpcbench.interop.traffic.imported import import_traffic
from hpcbench.operations import traffic
from hpcbench.operations.traffic import read_traffic
from hpcbench.profiling.profiled_cases import read_rank_file
from hpcbench.trace import container
from hpcbench.trace.sealed import open_trace
from hpcbench.trace.source import UnreadableTrace
from launcher import ROOT

FOREIGN = ROOT / "tests" / "data" / "foreign"


def refused_and_read(*words: object, named: Path | None = None) -> None:
    """The command names limit and remedy and ends with 2, and with the limits raised does it."""
    done = hpcbench(*map(str, words))
    assert done.returncode == 2 and done.stderr.count("\n") == 1, done
    assert f"{limits.VARIABLE}=2 " in done.stderr and str(named or words[1]) in done.stderr
    done = hpcbench(*map(str, words), **{limits.VARIABLE: "1e6"})
    assert done.returncode == 0, done.stderr


def test_a_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "SMALL_BYTES", 1000)
    path = tmp_path / "table.txt.gz"
    path.write_bytes(gzip.compress((FOREIGN / "all_reduce_8.txt").read_bytes() + b"\n" * 10**6))
    assert path.stat().st_size * limits.PACKED < 10**6
    refused_and_read("lint", path)


def test_short_lines_of_a_packed_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blank lines of 64 MiB take a reader 20 seconds."""
    path = tmp_path / "blank.txt.gz"
    path.write_bytes(gzip.compress(b"# nThread 1\n" + b"\n" * 200_000))
    taken = []
    with pytest.raises(FileError, match=limits.VARIABLE):
        monkeypatch.setattr(limits, "SMALL_BYTES", 2**20)
        taken.extend(line.number for line in source.ForeignFile(path).lines())
        pytest.fail(f"{len(taken)} lines were read")


def test_packed_files_in_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A profile of a rank is no profile; anonymize leaves such a file out, and names it."""
    monkeypatch.setattr(limits, "SMALL_BYTES", 1000)
    path = tmp_path / "log.json.gz"
    path.write_bytes(gzip.compress(b'{"a": "' + b"a" * 10**6 + b'"}'))
    with pytest.raises(TraceError, match=limits.VARIABLE):
        read_rank_file(path)
    with pytest.raises(ValueError, match=limits.VARIABLE):
        copy_text(path, tmp_path / "copy.json.gz", Pseudonyms({}, {}))
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


@pytest.mark.parametrize(("place", "limit"), [(limits, "PACKED"), (container, "MOST_TEXT")])
def test_what_hdf5_unpacks(monkeypatch: pytest.MonkeyPatch, place: object, limit: str) -> None:
    """Reduction leaves such a trace out, as any that cannot be read."""
    monkeypatch.setattr(limits, "SMALL_BYTES", 500)
    monkeypatch.setattr(place, limit, 1)
    refused_and_read("show", RUNS["collective"] / "results.h5")
    with pytest.raises(UnreadableTrace, match=limits.VARIABLE):
        open_trace(RUNS["primitive"] / "traces" / "rank00000.h5")


@pytest.mark.parametrize(("place", "limit", "most", "name"), [
    (source, "MOST_JSON_BYTES", 1, "flight_rank0.json"),
    (calls, "MOST_CALLS", 0.5, "kineto_rank0.json"),
    (calls, "MOST_CALLS", 0.5, "execution_rank0.json")])
def test_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: object, limit: str, most: float,
    name: str,
) -> None:
    monkeypatch.setattr(place, limit, most)
    refused_and_read("import", FOREIGN / name, "-o", tmp_path / "traffic.json")


def test_a_line(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"# OSU MPI Latency Test v7.3\n" + b"x" * (source.MOST_LINE_BYTES + 1))
    done = hpcbench("lint", str(path))
    assert done.returncode == 2 and "1 MiB" in done.stderr and str(path) in done.stderr


def test_traffic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sweep = tmp_path / "sweep.json"
    sweep.write_text(json.dumps({"benchmarks": [
        {"kind": "replay", "traffic": str(FOREIGN / "traffic.json")}]}))
    monkeypatch.setattr(traffic, "MOST_BYTES", 100)
    refused_and_read("plan", sweep, named=FOREIGN / "traffic.json")


@pytest.mark.parametrize("text", ["", "0.5", "-1", "nan", "inf", "many"])
def test_a_factor_that_is_none(text: str) -> None:
    done = hpcbench("show", str(RUNS["collective"]), **{limits.VARIABLE: text})
    assert done.returncode == 2 and limits.VARIABLE in done.stderr, done.stderr


@pytest.mark.parametrize("of_group", [
    {"size": -1}, {"size": 10**12}, {"ranks": (0, -1)}, {"ranks": (0, 10**12)}, {"ranks": (1, 1)}])
def test_a_group_that_no_job_has(of_group: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="group"):
        calls.KnownGroup(**of_group)


OF_CALLS = {"In msg nelems", "Out msg nelems", "Src Rank", "Dst Rank", "dur", "rank",
            "world_size", "n_ranks", "coll_sn", "coll_msg_size_bytes", "p2p_peer",
            "coll_exec_time_us", "p2p_exec_time_us", "p2p_msg_size_bytes",
            "duration_ms", "in_msg_nelems", "out_msg_nelems", "record_id"}
"""Numbers that every call has."""


@pytest.mark.parametrize("name", [
    "kineto_rank0.json", "execution_rank0.json", "flight_rank0.json", "inspector.jsonl"])
@pytest.mark.parametrize("value", [-1, pytest.param(10**400, id="400 digits"), 1e300])
def test_a_number_that_no_record_has(tmp_path: Path, name: str, value: float) -> None:
    """It is refused with the file, or its call is left out, counted; what is written is sound."""
    text = (FOREIGN / name).read_text()
    parts = text.splitlines() if name.endswith("l") else [text]
    for at, part in enumerate(parts):
        for number, (holder, key) in enumerate(places(json.loads(part))):
            tree = json.loads(part)
            holder, key = [*places(tree)][number]
            if isinstance(holder[key], bool) or not isinstance(holder[key], (int, float)):
                continue
            holder[key] = value
            path, out = tmp_path / name, tmp_path / f"{number}.json"
            path.write_text("\n".join([*parts[:at], json.dumps(tree), *parts[at + 1:]]))
            try:
                notes = "\n".join(import_traffic([path], out)[1])
            except FileError as error:
                assert str(path) in str(error) or path.name in str(error)
            else:
                read_traffic(out)
                what = key if key != "value" else holder["name"]
                unread = what == "dur" and holder["cat"] != "kernel"
                assert what not in OF_CALLS or unread or "left out" in notes, (key, notes)
            out.unlink(missing_ok=True)

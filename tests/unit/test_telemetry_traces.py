"""Readings in a journal and in the trace that is made of it."""

from __future__ import annotations

import os
from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.trace.columns import KEYS, NOT_READ, TABLES, Rows, TelemetryReport
from hpcbench.trace.journal import Journal, Kind, pack_frame, read_journal
from hpcbench.trace.sealed import open_trace, seal
from hpcbench.trace.source import telemetry_report
from synthetic import make_header, make_plan, make_record

PLAN = make_plan(n_cases=2)
REPORT = TelemetryReport(2.0, {"cpu": ("all cores",), "network": ("lo", "eth0")}, {"gpu": "no GPU"})


def rows(table: str, n: int, first: int = 0) -> Rows:
    width = len(KEYS) + len(TABLES[table].names)
    return np.arange(first, first + n * width, dtype=np.int64).reshape(n, width)


def write(path: Path) -> Path:
    with Journal.create(path, make_header(PLAN, 0), PLAN) as journal:
        journal.note("telemetry", REPORT.to_json(), durable=False)
        for number, case in enumerate(PLAN.cases):
            journal.readings({"cpu": rows("cpu", 2, 100 * number),
                              "network": rows("network", 3)} if number else
                             {"cpu": rows("cpu", 2)})
            journal.append(make_record(case, 0))
        journal.readings({})
        journal.note("end", {})
    return path


def test_a_journal_and_its_trace_have_the_readings(tmp_path: Path) -> None:
    journal = read_journal(write(tmp_path / "rank00000.journal"))
    seal(journal.path, tmp_path / "rank00000.h5")
    for source in (journal, open_trace(tmp_path / "rank00000.h5")):
        assert not source.damage and telemetry_report(source) == REPORT
        assert len([*source.records()]) == 2
        found = source.telemetry()
        assert found.keys() == {"cpu", "network"}
        assert np.array_equal(found["cpu"], np.concatenate([rows("cpu", 2), rows("cpu", 2, 100)]))
        assert np.array_equal(found["network"], rows("network", 3))


def test_the_trace_describes_them(tmp_path: Path) -> None:
    seal(write(tmp_path / "a.journal"), tmp_path / "a.h5")
    with h5py.File(tmp_path / "a.h5") as file:
        sent = file["telemetry/network/sent_bytes"]
        assert sent.attrs["units"] == "bytes" and "counts up" in sent.attrs["description"]
        assert "lowest rank of each node" in file["telemetry/network"].attrs["description"]
        assert "telemetry/gpu" not in file


def test_a_trace_without_readings_has_no_group(tmp_path: Path) -> None:
    with Journal.create(tmp_path / "a.journal", make_header(PLAN, 0), PLAN) as journal:
        journal.note("end", {})
    seal(tmp_path / "a.journal", tmp_path / "a.h5")
    trace = open_trace(tmp_path / "a.h5")
    assert trace.telemetry() == {} and telemetry_report(trace) is None
    with h5py.File(tmp_path / "a.h5") as file:
        assert "telemetry" not in file


def test_columns_of_other_versions(tmp_path: Path) -> None:
    """A newer column is left out, one that was not there yet is not read, a new table is ignored.
    """
    path = write(tmp_path / "a.journal")
    path.write_bytes(path.read_bytes() + pack_frame(
        Kind.TELEMETRY, {"table": "cpu", "columns": ["time_ns", "device", "later", "idle_ns"]},
        np.array([[1, 0, 7, 8]], dtype=np.int64)) + pack_frame(
        Kind.TELEMETRY, {"table": "fans", "columns": ["time_ns"]}, np.array([[1]], dtype=np.int64)))
    journal = read_journal(path)
    last = dict(zip((*KEYS, *TABLES["cpu"].names), journal.telemetry()["cpu"][-1].tolist(),
                    strict=True))
    assert not journal.damage and last == {
        "time_ns": 1, "device": 0, "idle_ns": 8, "user_ns": NOT_READ, "system_ns": NOT_READ,
        "steal_ns": NOT_READ}
    assert journal.telemetry().keys() == {"cpu", "network"}


@pytest.mark.parametrize("meta", [
    {}, {"table": "cpu"}, {"table": "cpu", "columns": ["time_ns", "device", "idle_ns"]},
    {"table": "cpu", "columns": ["device", "idle_ns"]}, {"table": "cpu", "columns": 3}])
def test_a_frame_that_is_none_is_damage_and_costs_nothing_else(
    tmp_path: Path, meta: dict[str, object],
) -> None:
    path = write(tmp_path / "a.journal")
    path.write_bytes(path.read_bytes() + pack_frame(
        Kind.TELEMETRY, meta, np.ones((2, 2), dtype=np.int64)))
    journal = read_journal(path)
    (damage,) = journal.damage
    assert "cannot be understood" in damage.what
    assert len([*journal.records()]) == 2 and len(journal.telemetry()["cpu"]) == 4


@pytest.mark.parametrize("cut", [0.3, 0.5, 0.7, 0.9])
def test_what_is_before_a_tear_is_kept(tmp_path: Path, cut: float) -> None:
    path = write(tmp_path / "a.journal")
    whole = read_journal(path).telemetry()
    os.truncate(path, int(path.stat().st_size * cut))
    for table, kept in read_journal(path).telemetry().items():
        assert np.array_equal(kept, whole[table][:len(kept)])

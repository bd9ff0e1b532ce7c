"""What a case used, from readings in a journal and in the trace made of it."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbench.plan.case import Plan
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, RankTelemetry
from hpcbench.reduce.results_file import open_results, time_series
from hpcbench.reduce.usage import TableReadings
from hpcbench.report.summary import case_rows, write_summary
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.columns import KEYS, NOT_READ, TABLES, Rows, TelemetryReport
from hpcbench.trace.journal import Journal, Kind, pack_frame, read_journal
from hpcbench.trace.schema import SAMPLE_COLUMNS, SETTLING_CALLS, Flag, Header, Record
from hpcbench.trace.sealed import open_trace, seal
from hpcbench.trace.source import telemetry_report
from hpcbench.views.columns import telemetry_line, telemetry_tables
from synthetic import (
    BASE_NS,
    CASE_NS,
    make_header,
    make_plan,
    make_record,
    sync_note,
    with_rows,
    write_synthetic_run,
)

CPU_CASES, GPU = 2, "GPU-a"
DEVICES = {"process": ("worker",), "cpu": ("all cores",), "frequency": ("cores 0",),
           "energy": ("package-0", "package-0/dram", "package-0/core", "psys"),
           "network": ("lo", "eth0")}
WHY = {"gpu": "no GPU", "network.dropped": "no such counter"}
Change = Callable[[str, int, Rows], Rows]


def table(name: str, times_ns: list[int], device: int = 0, **columns: Any) -> Rows:
    """Rows of one device; a column is a list, or a step by which it rises from row to row."""
    rows = np.full((len(times_ns), len(KEYS) + len(TABLES[name].names)), NOT_READ, dtype=np.int64)
    rows[:, 0], rows[:, 1] = times_ns, device
    for column, values in columns.items():
        at = len(KEYS) + TABLES[name].names.index(column)
        rows[:, at] = values if isinstance(values, list) else np.arange(len(rows)) * values + 7
    return rows


def readings(rank: int, times_ns: list[int]) -> dict[str, Rows]:
    """What a rank reads at each of these times; rank 0 also what is the node's."""
    found = {"process": table("process", times_ns, pid=[5 + rank] * len(times_ns),
                              cpu_ns=1000 * (rank + 1), wait_ns=10, minor_faults=3,
                              major_faults=1, rss_bytes=0)}
    if rank:
        return found
    return {**found,
            "cpu": table("cpu", times_ns, user_ns=60, system_ns=20, idle_ns=15, steal_ns=5),
            "frequency": table("frequency", times_ns, lowest_khz=[800_000] * len(times_ns),
                               mean_khz=0, highest_khz=[900_000] * len(times_ns), throttled=0),
            "energy": np.concatenate([table("energy", times_ns, device, energy_uj=1_000_000)
                                      for device in range(4)]),
            "network": np.concatenate([
                table("network", times_ns, 0, sent_bytes=4000, received_bytes=4000, dropped=1),
                table("network", times_ns, 1, sent_bytes=100, received_bytes=50, dropped=0)])}


def run(
    tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch,
    read: Callable[[int, int], Mapping[str, Rows]], *, told: TelemetryReport | None = None,
    **more: Any,
) -> Path:
    """Write a run whose journals have ``read(rank, pass)`` behind the records of each pass."""
    write = Journal.append

    def append(journal: Journal, record: Record) -> None:
        write(journal, record)
        rank = int(journal.path.stem.removeprefix("rank"))
        if record.case_id == plan.cases[-1].case_id:
            journal.readings(read(rank, record.pass_index))

    monkeypatch.setattr(Journal, "append", append)
    earlier = more.pop("notes", None)
    sources = told or TelemetryReport(2.0, DEVICES, WHY)

    def notes(rank: int) -> list[tuple[str, dict[str, Any]]]:
        devices = sources.devices if not rank else {
            name: found for name, found in sources.devices.items() if name in ("process", "gpu")}
        return [*(earlier(rank) if earlier else ()),
                ("telemetry", replace(sources, devices=devices).to_json())]

    write_synthetic_run(tmp_path, plan, notes=notes, **more)
    return tmp_path


def each_case(rank: int, pass_index: int) -> dict[str, Rows]:
    """Readings around each record of a pass. A record lasts until the next one begins."""
    times_ns = [BASE_NS + CASE_NS * (1000 * pass_index) + at * CASE_NS // 2
                for at in range(2 * CPU_CASES + 1)]
    return readings(rank, times_ns)


def result(tmp_path: Path, plan: Plan, monkeypatch: pytest.MonkeyPatch, **more: Any) -> CaseResult:
    return reduce_folder(run(tmp_path, plan, monkeypatch, each_case, **more)).cases[0]


def test_a_mean_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of each record there are three readings: at its begin, in the middle, at its end."""
    plan = make_plan(CPU_CASES, passes=2)
    usage = result(tmp_path, plan, monkeypatch).usage
    assert usage is not None and usage.passes == 2
    assert usage.window_s == 1.0
    assert (usage.cpu_s, usage.wait_s) == pytest.approx((2 * 3000e-9, 2 * 20e-9))
    assert (usage.minor_faults, usage.major_faults) == (12, 4)
    assert usage.steal_share == pytest.approx(0.05)
    assert (usage.energy_j, usage.mean_power_w, usage.energy_of) == (4.0, 4.0, "cpu")
    assert (usage.clock_low_mhz, usage.clock_high_mhz, usage.clock_of) == (800, 900, "cpu")
    assert (usage.throttled, usage.throttled_by) == (False, ())
    assert (usage.sent_bytes, usage.sent_by_node, usage.loopback_bytes, usage.dropped) == (
        8200, (8200,), 8000, 2)
    # 7 calls of 8 B: each of 2 ranks sends its size times 2 (n - 1) / n
    assert usage.computed_bytes == 7 * 8 * 2
    assert usage.nvlink_bytes is usage.ecc_errors is None and usage.xids == ()


def test_unrecorded_calls_after_checks_count(tmp_path: Path, monkeypatch: pytest.MonkeyPatch
                                             ) -> None:
    write = Journal.append

    def append(journal: Journal, record: Record) -> None:
        samples = record.samples.rows()
        samples[-1:, SAMPLE_COLUMNS.index("flags")] |= Flag.SETTLED
        write(journal, with_rows(record, samples))

    monkeypatch.setattr(Journal, "append", append)
    usage = result(tmp_path, make_plan(CPU_CASES, passes=2), monkeypatch).usage
    assert usage is not None and usage.computed_bytes == (7 + SETTLING_CALLS) * 8 * 2


def test_a_call_that_is_checked_alone_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 9 rows those at both ends are one call each, the others are batches of 4."""
    plan = make_plan(CPU_CASES, passes=2, mode="pipelined", batch=4)
    usage = result(tmp_path, plan, monkeypatch).usage
    assert usage is not None and usage.computed_bytes == (2 + 7 * 4) * 8 * 2


def test_results_and_summaries_record_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plan = make_plan(CPU_CASES, passes=2)
    results = reduce_folder(run(tmp_path, plan, monkeypatch, each_case))
    with open_results(tmp_path) as file:
        assert file.results.cases == results.cases and file.results.telemetry == results.telemetry
    with h5py.File(tmp_path / "results.h5") as file:
        assert file["cases/energy_j"][:].tolist() == [4.0, 4.0]
        assert file["cases/throttled"][:].tolist() == [0, 0]
        assert file["telemetry/energy/rank"][:].tolist() == [0] * 40
        assert file["telemetry/process/rank"][:].tolist() == [0] * 10 + [1] * 10
        assert file["telemetry/cpu/steal_ns"].attrs["units"] == "ns"
        (course,) = time_series(file, results.telemetry, "cpu", "user_ns")
    assert (course.rank, course.device) == (0, "all cores") and len(course.values) == 10
    row = case_rows(results)[0]
    assert (row["energy_j"], row["usage_passes"], row["sent_by_node"]) == (4.0, 2, (8200,))
    write_summary(results, tmp_path)
    assert "usage_window_s" in (tmp_path / "summary.csv").read_text().split("\n")[0]


def test_a_run_that_read_nothing_has_no_such_fields(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path, make_plan())
    results = reduce_folder(tmp_path)
    assert results.telemetry == () and results.cases[0].usage is None
    assert "energy_j" not in case_rows(results)[0]
    assert not [*telemetry_tables(results)] and telemetry_line(results) == ""
    with h5py.File(tmp_path / "results.h5") as file:
        assert "telemetry" not in file and "usage" not in file["cases"]
        assert np.isnan(file["cases/energy_j"][:]).all()


def test_a_pass_that_readings_do_not_bracket_closely_counts_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of the second pass the readings are too far apart, or one rank has none after it."""
    def read(rank: int, pass_index: int) -> Mapping[str, Rows]:
        found = each_case(rank, pass_index)
        if pass_index:
            found = {name: rows[rows[:, 0] != rows[:, 0].max()] for name, rows in found.items()}
            found["process"] = found["process"][:1 + rank]
        return found

    plan = make_plan(CPU_CASES, passes=2)
    first, last = reduce_folder(run(tmp_path, plan, monkeypatch, read)).cases
    assert first.usage.passes == 2 and first.usage.cpu_s == pytest.approx(6e-6)
    assert last.usage.passes == 1 and last.usage.energy_j == 4.0


def test_a_worker_that_was_replaced_reports_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    def read(rank: int, pass_index: int) -> Mapping[str, Rows]:
        found = each_case(rank, pass_index)
        found["process"][2:, len(KEYS)] = 99
        return found

    usage = reduce_folder(run(tmp_path, make_plan(CPU_CASES), monkeypatch, read)).cases[0].usage
    assert usage is not None and usage.cpu_s is None and usage.energy_j == 4.0


def test_gpus_throttled_and_broken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def read(rank: int, pass_index: int) -> Mapping[str, Rows]:
        times_ns = [BASE_NS + at * CASE_NS // 2 for at in range(2 * CPU_CASES + 1)]
        n = len(times_ns)
        return {"gpu": table(
            "gpu", times_ns, energy_mj=100_000, sm_mhz=[1400, 1200, 1410, 1400, 1400],
            throttle_reasons=[0, 0x4, 0x41, 0, 0], nvlink_sent_bytes=500, xid=[0] * (n - 1) + [79],
            ecc_corrected=1, ecc_uncorrected=0)}

    def on_gpu(rank: int, record: Record) -> list[Record]:
        return [replace(record, device=f"cuda:{rank}")]

    results = reduce_folder(run(tmp_path, make_plan(CPU_CASES), monkeypatch, read, change=on_gpu,
                                told=TelemetryReport(2.0, {"gpu": (GPU,)})))
    first, last = (item.usage for item in results.cases)
    assert (first.energy_j, first.mean_power_w, first.energy_of) == (400, 400, "gpu")
    assert (first.clock_low_mhz, first.clock_high_mhz, first.clock_of) == (1200, 1200, "gpu")
    assert first.throttled and first.throttled_by == ("power cap",)
    assert (first.nvlink_bytes, first.ecc_errors, first.xids) == (2000, 4, ())
    assert (last.throttled, last.xids) == (False, (79,))


def test_one_rank_without_readings_of_its_gpu(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half the energy is no energy of the case."""
    def read(rank: int, pass_index: int) -> Mapping[str, Rows]:
        times_ns = [BASE_NS + at * CASE_NS // 2 for at in range(2 * CPU_CASES + 1)]
        return {} if rank else {"gpu": table("gpu", times_ns, energy_mj=100_000)}

    results = reduce_folder(run(
        tmp_path, make_plan(CPU_CASES), monkeypatch, read,
        told=TelemetryReport(2.0, {"gpu": (GPU,)}),
        change=lambda rank, record: [replace(record, device="cuda:0")]))
    assert results.cases[0].usage is None


def test_readings_stand_on_the_global_clock(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    offset_ns = 5_000_000

    def on_two_nodes(header: Header) -> Header:
        return replace(header, node=f"node{header.rank}", local_rank=0)

    def notes(rank: int) -> list[tuple[str, dict[str, Any]]]:
        model = ClockModel(BASE_NS, 0.0, offset_ns * rank, 10.0, 1e-9, 1.0, rank - 1, 10, 0)
        return [sync_note(model, f"clock{rank}")]

    results = reduce_folder(run(tmp_path, make_plan(CPU_CASES), monkeypatch, each_case,
                                headers=on_two_nodes, notes=notes))
    with h5py.File(tmp_path / "results.h5") as file:
        first, second = time_series(file, results.telemetry, "process", "cpu_ns")
    assert (first.time_ns - second.time_ns).tolist() == [offset_ns] * len(first.time_ns)


def test_the_tables_show_what_was_read_and_why_not_the_rest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    results = reduce_folder(run(tmp_path, make_plan(CPU_CASES), monkeypatch, each_case))
    read, used = telemetry_tables(results)
    assert [row.cells for row in read.rows] == [
        ("process", "0-1", "worker", None), ("cpu", "0", "all cores", None),
        ("frequency", "0", "cores 0", None), ("energy", "0", ", ".join(DEVICES["energy"]), None),
        ("network", "0", "lo, eth0", None), ("gpu", "0-1", None, "no GPU"),
        ("network.dropped", "0-1", None, "no such counter")]
    assert [row.cells[0] for row in used.rows] == ["all_reduce 8B", "all_reduce 16B"]
    assert telemetry_line(results).startswith("no gpu counters")


@pytest.mark.parametrize(("readings_of_xid", "charged"), [
    ([0, 0, 79], {79}), ([79, 79, 79], set()), ([79, 79, 31], {31}), ([0, 0, 0], set())])
def test_an_xid_is_of_the_pass_in_which_it_came(
    readings_of_xid: list[int], charged: set[int],
) -> None:
    use = TableReadings()
    use.add("gpu", 0, GPU, table("gpu", [0, 10**9, 2 * 10**9], xid=readings_of_xid))
    assert use.xids == charged


def test_values_of_the_moment_are_of_readings_within_the_pass() -> None:
    """Before and after it the GPU is idle, at another clock; a new worker shows at either end."""
    use = TableReadings()
    use.add("gpu", 0, GPU, table("gpu", [0, 10**9, 2 * 10**9], sm_mhz=[210, 1400, 300],
                                 throttle_reasons=[0x4, 0, 0x40]))
    use.add("process", 0, "worker", table("process", [0, 10**9], pid=[5, 6]))
    assert (use.least["sm_mhz"], use.greatest["sm_mhz"], use.reasons) == (1400, 1400, 0)
    assert not use.is_same


def test_a_pass_without_a_reading_in_it_has_no_clock() -> None:
    use = TableReadings()
    use.add("gpu", 0, GPU, table("gpu", [0, 10**9], sm_mhz=[210, 300], throttle_reasons=[4, 4]))
    assert not use.least and not use.greatest and not use.reasons


def test_courses_of_many_ranks_take_one_sort(tmp_path: Path) -> None:
    """2,000 ranks with 2 devices each, one reading at a time; each keeps its own, in order."""
    ranks, times = 2000, 100
    told = [RankTelemetry(rank, 0, 2.0, {"gpu": ("a", "b")}) for rank in range(ranks)]
    at = {"rank": np.tile(np.repeat(np.arange(ranks), 2), times), "attempt": 0,
          "device": np.tile([0, 1], ranks * times),
          "time_ns": np.repeat(np.arange(times), 2 * ranks)}
    at["power_mw"] = at["rank"] * 10 + at["device"] + at["time_ns"] * 10**6
    began_s = time.process_time()
    with h5py.File(tmp_path / "any.h5", "w") as file:
        for name, values in at.items():
            file[f"telemetry/gpu/{name}"] = np.broadcast_to(values, at["rank"].shape)
        found = [*time_series(file, told, "gpu", "power_mw")]
    assert time.process_time() - began_s < 1
    assert [(item.rank, item.device) for item in found[:3]] == [(0, "a"), (0, "b"), (1, "a")]
    assert len(found) == 2 * ranks
    assert found[-1].values.tolist() == [19991 + step * 10**6 for step in range(times)]


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

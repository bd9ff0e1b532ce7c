"""Files of every schema version, kept for ever: what they say must not change (tests/data)."""

from __future__ import annotations

from pathlib import Path

import h5py
import numpy as np
import pytest

from hpcbench.reduce.results import Canary, Clocks
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.clock import ClockCheck
from hpcbench.trace.journal import read_journal
from hpcbench.trace.schema import NO_COMMUNICATOR, NO_DEVICE_TIME, Flag
from hpcbench.trace.sealed import open_trace, seal
from hpcbench.trace.source import Note, sync_records, was_cut_short
from synthetic import same_record

DATA = Path(__file__).parents[1] / "data"
CASES = ("b86563c94654", "30e1395e3883", "90e8233c0c2d")
BASE_NS = 1_000_000_000_000
STARTS_NS = BASE_NS + 1_000_000 * np.arange(1, 8)
DURATIONS_NS = 10_000 + np.arange(7)


def test_a_trace_of_version_1_is_read() -> None:
    trace = open_trace(DATA / "trace-v1.h5")
    header = trace.header
    assert (header.schema_version, header.run_id, header.rank, header.world_size) == (
        1, "run-1", 0, 2)
    assert (header.hostname, header.node, header.local_rank, header.pid) == (
        "host0", "node0", 0, 1000)
    assert header.versions == {"hpcbench": "0.1", "torch": "2.0"}
    assert header.environment["started_at"] == "2026-01-02T03:04:05Z"
    assert trace.notes == (Note("end", {"status": "finished"}),)
    assert not was_cut_short(trace) and trace.case_ids == frozenset(CASES[:2])
    assert trace.plan is not None
    assert [case.case_id for case in trace.plan.cases] == list(CASES)
    assert (trace.plan.passes, trace.plan.cases[2].skip) == (2, "gloo has no avg")
    assert trace.plan.cases[2].env == (("NCCL_ALGO", "Ring"),)


def test_the_records_of_version_1_are_read() -> None:
    records = list(open_trace(DATA / "trace-v1.h5").records())
    assert [record.key for record in records] == [
        (CASES[0], 0, 0, 0), (CASES[1], 0, 0, 0), (CASES[0], 1, 0, 0), (CASES[1], 1, 0, 0)]
    first, failed = records[0], records[3]
    assert (first.status, first.mode, first.device, first.n_wrong) == (
        "ok", "barrier_start", "cpu", 0)
    assert (first.begin_ns, first.end_ns) == (BASE_NS, BASE_NS + 1_000_000_000)
    assert first.samples.start_ns.tolist() == STARTS_NS.tolist()
    assert first.samples.end_ns.tolist() == (STARTS_NS + DURATIONS_NS).tolist()
    assert first.samples.rows()[:, 2:4].tolist() == [[NO_DEVICE_TIME, NO_DEVICE_TIME]] * 7
    assert first.samples.flags.tolist() == [Flag.WARMUP] * 2 + [0] * 5
    assert (failed.status, failed.reason, failed.blamed_rank, failed.n_wrong) == (
        "failed", "rank 1: killed by signal 9", 1, -1)
    assert len(failed.samples) == 0 and failed.detail == {"stderr": ["last words é"]}


def test_what_version_1_did_not_record_is_unknown() -> None:
    for record in open_trace(DATA / "trace-v1.h5").records():
        assert (record.stop_reason, record.position, record.communicator_ns) == (
            "", -1, NO_COMMUNICATOR)


@pytest.mark.parametrize("version", ["1", "2", "2-phases"])
def test_a_journal_says_what_the_trace_made_of_it_says(tmp_path: Path, version: str) -> None:
    """Also when today's version seals it."""
    journal = read_journal(DATA / f"journal-v{version}.journal")
    seal(journal.path, tmp_path / "sealed.h5")
    for trace in (open_trace(DATA / f"trace-v{version}.h5"), open_trace(tmp_path / "sealed.h5")):
        assert (journal.header, journal.notes, journal.damage) == (
            trace.header, trace.notes, ())
        pairs = list(zip(journal.records(), trace.records(), strict=True))
        assert pairs and all(same_record(*pair) for pair in pairs)


def test_results_of_version_1_are_read() -> None:
    with open_results(DATA / "results-v1.h5") as file:
        results, samples = file.results, file.samples(CASES[0])
    assert (results.run.run_id, results.run.ranks_present, results.run.nodes) == (
        "run-1", (0, 1), ("host0",))
    assert [item.case.case_id for item in results.cases] == list(CASES)
    assert [item.status for item in results.cases] == ["ok", "failed", "skipped"]
    ok, failed, _ = results.cases
    assert ok.statistics is not None
    assert (ok.statistics.n, ok.statistics.min_s, ok.statistics.max_s) == (
        10, 1.0102e-05, 1.1106e-05)
    assert (ok.statistics.p95_s, ok.n_wrong, ok.device) == (None, 0, "cpu")
    assert (failed.reason, failed.blamed_rank, failed.statistics) == (
        "rank 1: killed by signal 9", 1, None)
    assert failed.detail["1"] == {"stderr": ["last words é"]}
    assert (ok.library, results.run.environment_hash) == (None, None)
    assert [item.code for item in results.findings] == ["HB134"]
    assert samples is not None and samples.ranks == (0, 1)
    assert samples.pass_index.tolist() == [0] * 7 + [1] * 7
    assert samples.launch.tolist() == [0] * 14
    assert np.all(samples.enqueue_ns == NO_DEVICE_TIME)
    assert (ok.statistics.ci_low_s, ok.statistics.ci_reliable, ok.timing) == (None, False, None)
    assert results.canary is results.clocks is None
    assert (results.plan.launches, ok.case.batch, ok.case.is_fixed) == (1, 1, True)
    durations_ns = samples.end_ns - samples.start_ns
    assert durations_ns[0].tolist() == [*DURATIONS_NS, *(DURATIONS_NS + 1000)]
    assert durations_ns[1].tolist() == (durations_ns[0] + 100).tolist()


CASES_2 = ("b86563c94654", "30e1395e3883", "b1dc0c42db3b", "2ef4b3acad99")
OFFSET_NS, SLOPE = 7_000_000, 20e-6


def test_a_trace_of_version_2_is_read() -> None:
    trace = open_trace(DATA / "trace-v2.h5")
    assert (trace.header.schema_version, trace.header.rank, trace.header.node) == (2, 1, "node1")
    assert trace.plan is None and trace.case_ids == frozenset(CASES_2[:3])
    assert [note.kind for note in trace.notes] == ["clock", "clock", "canary", "canary", "end"]
    before, after = sync_records(trace)
    assert (before.identity, before.n_clocks) == ("clock1", 2)
    model = before.model
    assert (model.slope, model.bound_ns, model.slope_bound, model.residual_ns) == (
        SLOPE, 90.0, 1e-7, 12.0)
    assert (model.parent, model.n_used, model.n_rejected) == (0, 50, 49)
    assert model.to_global(model.t_ref_ns) == BASE_NS - 10**9
    assert model.offset_ns == OFFSET_NS + round(SLOPE * model.t_ref_ns)
    assert before.check == ClockCheck(model.t_ref_ns + 1000, 55.0, 80.0)
    assert after.model.t_ref_ns > before.model.t_ref_ns


def test_the_records_of_version_2_are_read() -> None:
    records = {record.key: record for record in open_trace(DATA / "trace-v2.h5").records()}
    assert len(records) == 2 * 2 * 3
    auto = records[CASES_2[0], 1, 1, 0]
    assert (auto.mode, auto.stop_reason, auto.communicator_ns) == (
        "isolated", "converged", NO_COMMUNICATOR)
    assert len(auto.samples) == 8
    assert records[CASES_2[0], 0, 0, 0].communicator_ns == 2_000_001
    assert records[CASES_2[0], 0, 0, 0].samples.flags[5] == Flag.LATE_START
    pipelined = records[CASES_2[1], 1, 0, 0]
    assert pipelined.stop_reason == "fixed"
    ends = Flag.SINGLE | Flag.CHECKED
    assert pipelined.samples.flags.tolist() == [ends | Flag.WARMUP, 1, 1, 0, 0, 0, 0, 0, 0, ends]
    on_gpu = records[CASES_2[2], 0, 0, 0]
    assert on_gpu.device == "cuda:1"
    assert on_gpu.samples.rows()[:, 2:4].tolist() == [[3000, 9000]] * 8
    duration_ns = on_gpu.samples.end_ns[3] - on_gpu.samples.start_ns[3]
    assert abs(duration_ns - (30_000 + 100 + 37 * 3 % 50)) <= 1
    failed = records[CASES_2[2], 0, 1, 0]
    assert (failed.status, failed.blamed_rank, failed.stop_reason) == ("timeout", 1, "")
    assert failed.detail == {"stderr": ["last words é"]}
    first_pass = [records[case_id, 0, 0, 0] for case_id in CASES_2[:3]]
    assert sorted(record.position for record in first_pass) == [0, 1, 2]


def test_the_clock_table_of_version_2_is_there_for_other_tools() -> None:
    for name, rows in (("trace-v2.h5", [1, 1]), ("results-v2.h5", [0, 0, 1, 1])):
        with h5py.File(DATA / name) as file:
            assert file["clock/rank"][:].tolist() == rows
            assert file["clock/slope"][-1] == SLOPE and file["clock/slope"].attrs["unit"] == "ns/ns"
            assert file["clock/check_error_ns"][-1] == 55.0


def test_results_of_version_2_are_read() -> None:
    with open_results(DATA / "results-v2.h5") as file:
        results, samples = file.results, file.samples(CASES_2[0])
    assert [item.status for item in results.cases] == ["ok", "ok", "timeout", "skipped"]
    assert (results.plan.launches, results.plan.passes) == (2, 2)
    assert results.run.environment_hash == "4f53cda18c2baa0c"
    assert [item.library and item.library["algorithm"] for item in results.cases] == [
        "unknown", "unknown", "unknown", None]
    auto, pipelined, failed, skipped = results.cases
    assert auto.statistics is not None and auto.timing is not None
    assert (auto.statistics.n, auto.statistics.min_s, auto.statistics.ci_reliable) == (
        30, 1.0108e-05, False)
    assert (auto.statistics.ci_low_s, auto.statistics.ci_high_s) == (1.0108e-05, 1.3148e-05)
    timing = auto.timing
    assert (timing.fold, timing.calls, timing.n_warmup, timing.n_ramp, timing.n_late) == (
        "global", 1, 8, 0, 3)
    assert (timing.quality, timing.stop_reasons) == (("ci_unreliable",), ("converged",) * 4)
    assert (timing.first_call_s, timing.communicator_s) == (1.21e-05, 2_000_001 / 1e9)
    assert timing.launch_medians_s == (1.06275e-05, 1.2147e-05)
    assert timing.pass_medians_s == ()  # files of version 2 had none at first
    assert pipelined.timing is not None
    assert (pipelined.timing.fold, pipelined.timing.calls) == ("per_call", 10)
    assert failed.timing is skipped.timing is None and failed.blamed_rank == 1
    assert isinstance(results.canary, Canary) and results.canary.quality == ("drifting",)
    assert [(run.launch, run.n) for run in results.canary.runs] == [(0, 20), (1, 20)]
    assert results.clocks == Clocks(2, 2, 9e-08, 5.5e-08, 20.0)
    assert [item.code for item in results.findings] == ["HB145"]
    assert samples is not None
    assert samples.launch.tolist() == [0] * 20 + [1] * 18
    assert samples.pass_index.tolist() == [0] * 10 + [1] * 10 + [0] * 10 + [1] * 8


def test_phases_of_version_2_are_read() -> None:
    trace = open_trace(DATA / "trace-v2-phases.h5")
    records = list(trace.records())
    assert [(record.case_id, record.pass_index) for record in records] == [
        ("training", 0), ("collective", 0), ("training", 1), ("collective", 1)]
    for record in records[::2]:
        step_ns = record.samples.end_ns - record.samples.start_ns
        assert step_ns[3] == 10_000 + 1000 * record.pass_index + 100 + 37 * 3 % 50
        assert list(record.phases) == ["data", "forward", "backward", "optimizer"]
        assert record.phases["data"].tolist() == (step_ns // 10).tolist()
        assert record.phases["backward"].tolist() == (step_ns // 4).tolist()
        assert np.all(sum(record.phases.values()) == step_ns - 4)
        assert record.detail["memory"] == {
            "parameters": 474_112, "gradients": 474_112, "optimizer_state": 948_224,
            "peak": 9_001_000 + 10 * record.pass_index, "peak_of": "process growth"}
    assert all(record.phases == {} for record in records[1::2])

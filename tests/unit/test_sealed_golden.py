"""Files of schema version 1, kept for ever: what they say must not change (tests/data)."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag
from hpcbench.trace.sealed import open_trace
from hpcbench.trace.source import Note, was_cut_short

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
    assert first.samples[:, 0].tolist() == STARTS_NS.tolist()
    assert first.samples[:, 1].tolist() == (STARTS_NS + DURATIONS_NS).tolist()
    assert first.samples[:, 2:4].tolist() == [[NO_DEVICE_TIME, NO_DEVICE_TIME]] * 7
    assert first.samples[:, 4].tolist() == [Flag.WARMUP] * 2 + [0] * 5
    assert (failed.status, failed.reason, failed.blamed_rank, failed.n_wrong) == (
        "failed", "rank 1: killed by signal 9", 1, -1)
    assert failed.samples.shape == (0, 5) and failed.detail == {"stderr": ["last words é"]}


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
    durations_ns = samples.end_ns - samples.start_ns
    assert durations_ns[0].tolist() == [*DURATIONS_NS, *(DURATIONS_NS + 1000)]
    assert durations_ns[1].tolist() == (durations_ns[0] + 100).tolist()

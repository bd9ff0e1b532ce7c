"""Readings of a real machine: around real cases, in a run that is stopped and goes on."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import h5py
import pytest

from hpcbench.reduce.results import CaseResult
from hpcbench.trace.container import attempt_folder
from hpcbench.trace.sealed import open_trace, trace_path
from hpcbench.trace.source import telemetry_report
from launcher import Finished, launcher_for
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

SIZES = ("1MiB", "4MiB")
MPI_BYTES, MPI_CALLS = 2**24, 50
CALLS = 60 + 1
CONFIG: dict[str, Any] = sweep(
    *SIZES, measure={"iterations": CALLS - 1, "passes": 2, "validate": False},
    telemetry={"rate_hz": 10})
CONFIG["benchmarks"].append({
    "kind": "collective", "collective": "all_reduce", "backend": "mpi", "size": str(MPI_BYTES),
    "iterations": MPI_CALLS, "validate": False})


@dataclass(frozen=True)
class Run:
    """A run of two attempts: what it printed last, its results and its folder."""

    last: Finished
    outcome: Outcome
    folder: Path

    def of_backend(self, backend: str) -> list[CaseResult]:
        return [item for item in self.outcome.results.cases if item.case.backend == backend]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    home = tmp_path_factory.mktemp("run")
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("jobs"))
    (home / "sweep.json").write_text(json.dumps(CONFIG))
    words = [launcher.program("python"), "-m", "hpcbench", "run", "-v", str(home / "sweep.json"),
             "--resume", str(home / "job")]
    with launcher.start(2, command=words) as job:
        job.wait_for("[1/6]")
        os.kill(job.pid, signal.SIGUSR1)
        job.wait(60).check(3)
    last = launcher.run(2, command=words).check()
    return Run(last, read(home / "job"), home / "job")


def test_each_case_records_what_its_passes_used(run: Run) -> None:
    for item in run.outcome.results.cases:
        assert item.status == "ok", item.reason
        usage = item.usage
        assert usage is not None and usage.window_s is not None, item.case.label
        assert 1 <= usage.passes <= 2
        if usage.cpu_s is not None:  # both workers for at most the window, on any machine
            assert 0 < usage.cpu_s < 2.2 * usage.window_s * (os.cpu_count() or 1)
        assert usage.steal_share is None or 0 <= usage.steal_share < 1
    assert any(item.usage and item.usage.cpu_s for item in run.outcome.results.cases)


def test_counters_see_what_gloo_sends_and_not_what_mpi_shares(run: Run) -> None:
    """Loopback has other users, too, so that only the lower bound is sharp."""
    told = [item.usage for item in run.of_backend("gloo") if item.usage]
    for usage in told:
        assert usage.computed_bytes is not None
        if usage.sent_bytes is not None:
            assert usage.sent_bytes > 0.99 * usage.computed_bytes
    assert [usage.computed_bytes for usage in told] == [
        CALLS * 2 * size * 2**20 for size in (1, 4)]
    (shared,) = (item.usage for item in run.of_backend("mpi"))
    assert shared is not None and shared.computed_bytes == (MPI_CALLS + 1) * 2 * MPI_BYTES


def test_nothing_is_read_while_what_is_timed_shares_the_process(run: Run) -> None:
    (item,) = run.of_backend("mpi")
    for attempt in (0, 1):
        for rank in (0, 1):
            trace = open_trace(trace_path(attempt_folder(run.folder / "traces", attempt), rank))
            times_ns = trace.telemetry()["process"][:, 0]
            for record in trace.records({item.case.case_id}):
                first, last = record.samples.start_ns[0], record.samples.end_ns[-1]
                assert last - first > 10**8  # longer than a period
                assert not ((times_ns > first) & (times_ns < last)).any()


def test_by_the_clock_ten_times_a_second(run: Run) -> None:
    trace = open_trace(trace_path(attempt_folder(run.folder / "traces", 1), 0))
    times_ns = trace.telemetry()["cpu"][:, 0]
    span_s = (times_ns[-1] - times_ns[0]) / 1e9
    assert len(times_ns) > 2 * span_s  # also on a machine that has no core for it


def test_both_attempts_are_there(run: Run) -> None:
    with h5py.File(run.folder / "results.h5") as file:
        assert {*file["telemetry/cpu/attempt"][:].tolist()} == {0, 1}
        assert {*file["telemetry/process/rank"][:].tolist()} == {0, 1}
        assert (file["telemetry/cpu/user_ns"][:] > 0).all()
    told = run.outcome.results.telemetry
    assert {(one.rank, one.attempt) for one in told} == {(0, 0), (1, 0), (0, 1), (1, 1)}
    assert all("network" in one.devices for one in told if not one.rank)


def test_what_cannot_be_read_is_one_line(run: Run) -> None:
    trace = open_trace(trace_path(run.folder / "traces", 0))
    told = telemetry_report(trace)
    lines = [line for line in run.last.stdout.splitlines() if "counters here" in line]
    missing = [name for name, why in told.missing.items()
               if "." not in name and not why.startswith("not wanted")]
    assert len(lines) == bool(missing)
    assert all(name in lines[0] for name in missing)
    assert "docs/telemetry.md" in run.last.stdout  # with --verbose

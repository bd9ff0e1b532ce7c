"""Kind memory in a real job: every strategy's peak as it was predicted, and a fault beside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from reading import NOT_DRAWN, ONCE, read

from golden import hpcbench
from hpcbench.kinds.memory.derive import HELD
from hpcbench.kinds.memory.plan import work_of
from launcher import Finished, MpiLauncher, launcher_for

pytestmark = pytest.mark.mpi

BLOCK: dict[str, Any] = {
    "kind": "memory", "model": "gpt2", "layers": 2, "hidden": 64, "heads": 4, "vocab": 4096,
    "seq_length": 32, "batch_size": 4}
SWEEP: dict[str, Any] = {
    "name": "memory", "measure": ONCE, "launch": {"timeout_s": 60},
    "output": NOT_DRAWN, "benchmarks": [
        {**BLOCK, "strategies": ["data", "fsdp"]},
        {**BLOCK, "name": "faulty", "strategies": "zero1"},
        {**BLOCK, "kind": "training", "strategies": "data", "iterations": 2, "warmup": 1}],
    "fault": [{"kind": "oom", "rank": 1, "case": "memory*zero1*"}]}
"""What is predicted, and measured once."""

LARGEST: dict[str, Any] = {
    "kind": "memory", "model": "gpt2", "layers": 1, "hidden": 16, "heads": 2, "vocab": 8192,
    "seq_length": 32, "strategies": "fsdp", "largest_batch": True}
MOST_PREDICTED = 41
"""Samples of LARGEST that are predicted to fit into 128 MiB: the first try."""
SEARCHES: list[dict[str, Any]] = [
    {**LARGEST, "name": "largest", "memory_limit": "128MiB"},
    {**LARGEST, "name": "none", "memory_limit": "16MiB", "vocab": 131072}]
KILLED = {"kind": "kill", "rank": 1, "case": f"memory*batch={MOST_PREDICTED} *"}


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Run the sweep and the searches as one job, of which its own plots are drawn."""
    mpirun = launcher_for("mpich", tmp_path_factory.mktemp("jobs"))
    done = mpirun.run(2, timeout=240, config={
        **SWEEP, "benchmarks": [*SWEEP["benchmarks"], *SEARCHES],
        "fault": [*SWEEP["fault"], KILLED]}).check(1)
    hpcbench("plot", str(done.folder), "--only", "memory*", "--only", "largest_batch*")
    mpirun.assert_no_orphans()
    return done


def test_what_ranks_hold_is_measured_beside_what_was_predicted(job: Finished) -> None:
    assert job.folder is not None
    results = read(job.folder).results
    found = {item.case.workload.choice().axes["strategy"]: item for item in results.cases
             if item.case.kind == "memory" and item.case.block not in ("largest", "none")}
    failed = found.pop("zero1")
    assert (failed.status, failed.blamed_rank) == ("failed", 1)
    assert "out of memory" in failed.reason and "; predicted 11." in failed.reason
    for name, item in found.items():
        assert (item.status, item.n_wrong) == ("ok", 0), (name, item.reason)
        record = results.derived["memory"][item.case.case_id]
        assert record["peak_bytes"] == sum(record[one.name] for one in HELD)
        assert abs(record["deviation"]) < 0.1, (name, record)
        assert 0 < record["utilisation"] < 1
        assert 0 < record["efficiency"] < 1
    rows = json.loads((job.folder / "summary.json").read_text("utf-8"))["results"]["memory"]
    assert [row["kind"] for row in rows] == ["training", *["memory"] * 3]  # not what has no peak
    assert list((job.folder / "plots").glob("memory*.png"))
    assert "predicted" in job.stdout


def test_a_job_that_was_killed_goes_on_with_what_it_had_not_measured(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    config, folder = tmp_path / "sweep.json", tmp_path / "run"
    config.write_text(json.dumps({**SWEEP, "fault": [], "benchmarks": [
        {**BLOCK, "strategies": ["single", "data", "fsdp"]}]}))
    words = [mpirun.program("python"), "-m", "hpcbench", "run", "-v", str(config), "--resume",
             str(folder)]
    with mpirun.start(2, command=words) as job:
        job.wait_for("[1/3] ok")
        job.kill()
        job.wait(60)
    again = mpirun.run(2, command=[*words[:4], "--resume", str(folder)], timeout=120).check()
    results = read(folder).results
    assert [item.status for item in results.cases] == ["ok"] * 3
    assert all(results.derived["memory"][item.case.case_id]["peak_bytes"] for item in results.cases)
    assert 1 <= again.stdout.count("] ok  ") <= 2, "what was acknowledged is not run again"
    mpirun.assert_no_orphans()


def test_the_largest_batch_is_found_by_tries_of_which_one_is_killed(job: Finished) -> None:
    assert job.folder is not None
    results = read(job.folder).results
    found, none = (next(item for item in results.cases if item.case.block == name)
                   for name in ("largest", "none"))
    search, record = work_of(found.case).search, results.derived["memory"][found.case.case_id]
    assert search is not None and search.first == MOST_PREDICTED
    assert (found.status, found.n_wrong) == ("ok", 0), found.reason
    tries = found.detail["0"]["tries"]
    assert (tries[0]["batch"], tries[0]["ended"]) == (MOST_PREDICTED, "died")
    assert "rank 1: worker ended by signal 9 (SIGKILL)" in tries[0]["reason"]
    assert {one["ended"] for one in tries[1:]} <= {"ok", "out of memory"}
    assert record["predicted_largest_batch"] == MOST_PREDICTED
    assert MOST_PREDICTED / 2 < record["largest_batch"] < record["too_large_batch"]
    assert record["too_large_batch"] <= MOST_PREDICTED
    assert record["utilisation"] < 1 and record["capacity_bytes"] == record["limit_bytes"] == 2**27
    assert (none.status, none.reason.partition(" tries")[2].partition(":")[0]) == (
        "failed", " was ok; the last one"), none.reason
    assert none.detail["0"]["tries"][-1]["batch"] == 1
    assert "out of memory" in none.reason
    assert "largest batch" in job.stdout and list((job.folder / "plots").glob("largest_batch*"))

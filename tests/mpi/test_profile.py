"""`hpcbench profile` with real ranks: the slow one is named, and nobody where none is slow."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.kinds.training.derive.stalls import LastRank, Stalls
from hpcbench.profiling.profiled_cases import rank_file, read_rank_file
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import open_results
from launcher import Finished, MpiLauncher

pytestmark = pytest.mark.mpi

SLEEP_S = 0.02
"""A slow rank sleeps so long for each of the two samples of its step."""
CONFIG: dict[str, Any] = {
    "measure": {"warmup": 2, "noise_check_s": 0, "canary": False, "validate": False},
    "output": {"plots": False},
    "benchmarks": [{
        "kind": "training", "model": "transformer-tiny", "layers": 1, "hidden": 32,
        "seq_length": 8, "vocab": 64, "batch_size": 2, "strategies": {"data": {}, "zero1": {}}},
        {"kind": "collective", "collective": "all_reduce", "size": 64}],
    "fault": [{"case": "* data *", "rank": 1, "kind": "slow_samples", "seconds": SLEEP_S}]}


def test_a_trace_shows_the_rank_that_is_slow(mpirun: MpiLauncher) -> None:
    """The fault is meant for all cases, and happens in those whose samples can take longer."""
    training, collective = CONFIG["benchmarks"]
    block = {**training, "strategies": "data", "communication": ["on", "off", "only"]}
    job = mpirun.run(2, config={
        **CONFIG, "benchmarks": [block, collective],
        "measure": {**CONFIG["measure"], "iterations": 3, "passes": 1},
        "profiling": {"enabled": True, "samples": 2},
        "fault": [{"rank": 1, "kind": "slow_samples", "seconds": SLEEP_S}]}).check()
    traced = {}
    for item in results_of(job).cases:
        assert item.status == "ok", item.reason
        about, _ = read_rank_file(rank_file(job.folder, item.case.case_id, 1))
        traced[getattr(item.case.workload, "communication", "none")] = [
            (end_ns - start_ns) / 1e9 for start_ns, end_ns, *_ in about.rows[-2:]]
    assert traced.keys() == {"on", "off", "only", "none"}
    assert min(*traced["on"], *traced["off"]) > 2 * SLEEP_S


def results_of(job: Finished) -> Results:
    assert job.folder is not None
    with open_results(job.folder) as file:
        return file.results


def stalls_of(results: Results, item: CaseResult) -> Stalls:
    assert item.status == "ok", item.reason
    stalls = (results.record_of(item) or {}).get("stalls")
    assert isinstance(stalls, Stalls)
    return stalls


def test_the_slow_rank_is_named_and_no_rank_of_equal_ones(mpirun: MpiLauncher) -> None:
    """It starts a launch of its own; the step with a slow rank takes 40 ms more in its forward."""
    command = (mpirun.program("python"), "-m", "hpcbench", "profile", "config.json", "-g", "2",
               "-d", "3s", "-o", "out", "--tool", "none")
    job = mpirun.run(0, config=CONFIG, command=command).check()
    mpirun.assert_no_orphans()
    results = results_of(job)
    slow, equal = (stalls_of(results, item) for name in ("data", "zero1")
                   for item in results.cases if item.case.workload.name == name)
    assert (len(results.cases), results.plan.passes) == (2, 9)  # the reduction shows no stalls
    last = slow.last
    assert isinstance(last, LastRank) and last.rank == 1 and last.phase == "forward"
    assert last.last_share > 0.8
    assert 0.5 < last.behind_s.value / (2 * SLEEP_S) < 3
    if equal.last is not None:  # on a busy machine a rank may truly be late, but not so much
        assert equal.last.behind_s.value < SLEEP_S
    text = job.stdout
    assert "rank 1 is the straggler" in text
    assert text.index("is the straggler") < text.index("report:")

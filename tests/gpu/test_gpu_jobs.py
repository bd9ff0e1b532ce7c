"""Small jobs on GPUs, one rank a GPU: right results, and what survives faults."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.results_file import open_results
from launcher import Finished, MpiLauncher

MEASURE = {"passes": 1, "warmup": 1, "iterations": 4, "canary": False, "noise_check_s": 0,
           "order": "planned"}


def job(*blocks: dict[str, Any], **sections: Any) -> dict[str, Any]:
    """Return a sweep of blocks on nccl."""
    return {"name": "gpu", "measure": MEASURE, "output": {"plots": False},
            "launch": {"timeout_s": 60}, **sections,
            "benchmarks": [{"backend": "nccl", **block} for block in blocks]}


def results(done: Finished) -> Results:
    """Read what a job left."""
    assert done.folder is not None, str(done)
    with open_results(done.folder) as file:
        return file.results


def not_ok(cases: tuple[CaseResult, ...]) -> list[str]:
    """Return what did not end as ok."""
    return [f"{item.case.label}: {item.status}: {item.reason}" for item in cases
            if item.status != "ok"]


@pytest.mark.mpi
def test_collectives_are_right_and_timed_by_events(mpirun: MpiLauncher, gpus: int) -> None:
    done = mpirun.run(gpus, config=job({
        "kind": "collective", "dtype": ["fp32", "bf16"], "size": "64KiB",
        "collective": ["all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"]}))
    done.check()
    found = results(done)
    assert not not_ok(found.cases)
    for item in found.cases:
        assert item.n_wrong == 0 and item.timing is not None
        assert item.timing.device_s and item.timing.enqueue_s


@pytest.mark.mpi
def test_primitives_and_steps_are_right(mpirun: MpiLauncher, gpus: int) -> None:
    done = mpirun.run(gpus, timeout=200, config=job(
        {"kind": "primitive", "primitive": ["tp_columnwise", "tp_rowwise"], "m": 256, "n": 256,
         "k": 256, "dtype": "bf16", "implementations": ["compute_only", "comm_only", "torch",
                                                        "functional", "chunked_pipeline"]},
        {"kind": "training", "model": "transformer-tiny", "batch_size": gpus, "dtype": "bf16",
         "strategies": ["data", "fsdp"]}))
    done.check()
    assert not not_ok(results(done).cases)


@pytest.mark.mpi
def test_captured_calls_are_right(mpirun: MpiLauncher, gpus: int) -> None:
    done = mpirun.run(gpus, config=job(
        {"kind": "collective", "collective": ["all_reduce", "all_gather"], "size": "64KiB",
         "cuda_graph": [False, True]},
        {"kind": "primitive", "primitive": "tp_columnwise", "m": 256, "n": 256, "k": 256,
         "implementations": ["torch", "functional"], "cuda_graph": True}))
    done.check()
    found = results(done).cases
    assert not not_ok(found) and {item.n_wrong for item in found} == {0}
    assert sum(item.case.cuda_graph for item in found) == 4


@pytest.mark.mpi
@pytest.mark.parametrize(("kind", "status", "words"), [
    ("device_error", "failed", "CUDA error"), ("device_oom", "failed", "out of memory"),
    ("device_hang", "timeout", "")])
def test_each_fault_of_a_gpu_costs_one_case(
    mpirun: MpiLauncher, gpus: int, kind: str, status: str, words: str,
) -> None:
    done = mpirun.run(gpus, config=job(
        {"kind": "collective", "collective": "all_reduce", "size": ["1KiB", "2KiB"]},
        launch={"timeout_s": 20},
        fault=[{"case": "* 1024B *", "rank": 0, "kind": kind, "iteration": 2}]))
    done.check(1)
    hit, healthy = results(done).cases
    assert hit.status == status and words in hit.reason, hit.reason
    assert healthy.status == "ok", healthy.reason


@pytest.mark.mpi
def test_more_ranks_than_gpus_are_refused(mpirun: MpiLauncher, gpus: int) -> None:
    done = mpirun.run(gpus + 1, config=job(
        {"kind": "collective", "collective": "all_reduce", "size": "1KiB"}))
    (case,) = results(done).cases
    assert case.status == "skipped" and "one rank a GPU" in case.reason

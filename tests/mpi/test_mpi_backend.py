"""Backend mpi: right on both MPIs, strong enough for training, and its hangs end in a verdict."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from hpcbench.reduce.reduce import reduce_folder
from launcher import EVERY_MPI, Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ON_GROUP = Path(__file__).with_name("on_mpi_group.py")
DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]
MOVING = ["all_gather", "all_to_all", "broadcast", "send_recv", "barrier"]


@EVERY_MPI
@pytest.mark.parametrize("ranks", [2, 3, 4])
def test_the_group_gives_what_gloo_gives(mpirun: MpiLauncher, ranks: int) -> None:
    done = _on_group(mpirun, ranks, "collectives")
    assert done.stdout.count("right") == ranks


@EVERY_MPI
@pytest.mark.parametrize("ranks", [2, 4])
def test_training_steps_have_one_process_gradients(mpirun: MpiLauncher, ranks: int) -> None:
    done = _on_group(mpirun, ranks, "training")
    assert done.stdout.count("right") == ranks


def _on_group(mpirun: MpiLauncher, ranks: int, what: str) -> Finished:
    command = [mpirun.program("python"), str(ON_GROUP), what]
    return mpirun.run(ranks, command=command, timeout=90).check()


@EVERY_MPI
@pytest.mark.parametrize("ranks", [
    pytest.param(2, marks=pytest.mark.soak), 3, pytest.param(4, marks=pytest.mark.soak)])
def test_every_collective_dtype_and_op_is_right(mpirun: MpiLauncher, ranks: int) -> None:
    mpi = {"kind": "collective", "backend": "mpi", "dtype": DTYPES, "size": ["4KiB", "100000"]}
    config = sweep(benchmarks=[
        {**mpi, "name": "moving", "collective": MOVING},
        {**mpi, "name": "in_place", "collective": "all_gather", "in_place": True, "size": "4KiB"},
        {**mpi, "name": "ops", "collective": ["all_reduce", "reduce_scatter"], "size": "12KiB",
         "op": ["sum", "prod", "min", "max", "avg"]},
    ])
    outcome = read(mpirun.run(ranks, config=config, timeout=110).check().folder)
    for item in outcome.results.cases:
        work = item.case.workload
        integer = work.dtype in ("int32", "int64", "uint8")
        if work.op == "avg" and integer:
            assert item.status == "skipped" and "floating" in item.reason, item.case.label
        elif work.op and work.dtype == "bf16" and item.status == "skipped":
            assert "bf16" in item.reason  # MPICH 5.0 and Open MPI 5.0 cannot reduce it
        else:
            assert item.status == "ok", (item.case.label, item.reason)


def test_gloo_and_mpi_side_by_side_and_on_sub_worlds(mpirun: MpiLauncher) -> None:
    config = sweep("8", "1KiB", block={"backend": ["gloo", "mpi"], "world_size": [1, 2, 4]},
                   measure={"warmup": 1, "iterations": 3, "passes": 2})
    job = mpirun.run(4, config=config, timeout=100).check()
    outcome = read(job.folder)
    assert set(outcome.status().values()) == {"ok"} and len(outcome.status()) == 12
    assert "12 of them run last and in the MPI processes" in job.stdout + job.stderr  # two passes


def test_a_single_process_runs_it_too(mpirun: MpiLauncher) -> None:
    config = sweep("8", block={"backend": ["mpi"]})
    assert set(read(mpirun.run(1, config=config).check().folder).status().values()) == {"ok"}


def _with_fault(kind: str, backend: str = "mpi") -> dict[str, Any]:
    fault = {"case": f"* {backend} * 16B *", "rank": 1, "kind": kind, "iteration": 2,
             "seconds": 60}
    return sweep("8", "16", "32", block={"backend": ["gloo", "mpi"]}, launch={"timeout_s": 4},
                 fault=[fault])


@EVERY_MPI
@pytest.mark.parametrize(("kind", "status", "words"), [
    ("stop", "timeout", "a rank is stopped or gone"),
    ("slow", "timeout", "phase run of iteration 2"),
    ("raise", "failed", "rank 1: InjectedFault"),
])
def test_a_hang_ends_the_job_with_its_verdict_on_disk(
    mpirun: MpiLauncher, kind: str, status: str, words: str,
) -> None:
    job = mpirun.run(3, config=_with_fault(kind), timeout=60).check(3)
    mpirun.assert_no_orphans()
    assert "it ran in the MPI process (backend mpi), so the job ends here" in job.stderr
    assert job.folder is not None
    cases = {(item.case.backend, item.case.workload.size_bytes): item
             for item in reduce_folder(job.folder).cases}
    hung = cases.pop(("mpi", 16))
    assert hung.status == status and words in hung.reason, hung
    assert cases.pop(("mpi", 32)).status == "not_run"
    assert {item.status for item in cases.values()} == {"ok"}


def test_what_this_mpi_cannot_reduce_is_known_before_anything_starts(
    mpirun: MpiLauncher,
) -> None:
    done = mpirun.run(1, command=[sys.executable, "-m", "hpcbench.backends.mpi_facts"]).check()
    facts = json.loads(done.stdout)
    assert facts["reason"] is None
    assert set(facts["lacks"]) <= {"fp16", "bf16"}

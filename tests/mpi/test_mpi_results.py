"""Backend mpi: right on both MPIs, beside gloo, and strong enough for training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbench.operations.collectives import collectives
from hpcbench.reduce.reduce import reduce_folder
from launcher import EVERY_MPI, EVERY_MPI_IF_ALL, Finished, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ON_GROUP = Path(__file__).with_name("on_mpi_group.py")
DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]
MOVING = ["all_gather", "all_to_all", "broadcast", "send_recv", "barrier"]


@pytest.mark.parametrize(("mpirun", "ranks"), [
    ("mpich", 2), ("openmpi", 3),
    *(pytest.param(mpi, ranks, marks=pytest.mark.soak)
      for mpi, ranks in (("mpich", 3), ("openmpi", 2), ("mpich", 4), ("openmpi", 4)))],
    indirect=["mpirun"])
def test_the_group_gives_what_gloo_gives(mpirun: MpiLauncher, ranks: int) -> None:
    """Two ranks of one MPI and three of the other: the code is the same, the calls are, too."""
    done = _on_group(mpirun, ranks, "collectives")
    assert done.stdout.count("right") == ranks


@pytest.mark.parametrize(("mpirun", "ranks"), [
    ("mpich", 3), ("openmpi", 2), pytest.param("openmpi", 3, marks=pytest.mark.soak)],
    indirect=["mpirun"])
def test_more_than_mpi_counts_is_counted_otherwise(mpirun: MpiLauncher, ranks: int) -> None:
    """The arithmetic of messages beyond 2**31 - 1, with an MPI that is said to count to 5."""
    assert _on_group(mpirun, ranks, "counted").stdout.count("right") == ranks


@EVERY_MPI
@pytest.mark.soak
@pytest.mark.timeout(400)
def test_messages_beyond_2_gib(mpirun: MpiLauncher) -> None:
    """Takes 14 GB of memory."""
    done = mpirun.run(2, command=[mpirun.program("python"), str(ON_GROUP), "large"], timeout=380)
    assert done.check().stdout.count("right") == 2


@EVERY_MPI
@pytest.mark.soak
def test_a_case_of_2_gib_is_measured(mpirun: MpiLauncher) -> None:
    """What Open MPI once refused: MPI_ERR_ARG at a broadcast of 2**31 bytes."""
    config = sweep("2GiB", block={"collective": "broadcast", "backend": ["mpi", "mpi/direct"]},
                   measure={"warmup": 0, "iterations": 1, "validate": False},
                   launch={"timeout_s": 90})
    outcome = read(mpirun.run(2, config=config, timeout=300).check().folder)
    assert [item.status for item in outcome.results.cases] == ["ok", "ok"]


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("ranks", [pytest.param(2, marks=pytest.mark.soak), 4])
def test_training_steps_have_one_process_gradients(mpirun: MpiLauncher, ranks: int) -> None:
    done = _on_group(mpirun, ranks, "training")
    assert done.stdout.count("right") == ranks


def _on_group(mpirun: MpiLauncher, ranks: int, what: str) -> Finished:
    command = [mpirun.program("python"), str(ON_GROUP), what]
    return mpirun.run(ranks, command=command, timeout=90).check()


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("ranks", [
    2, pytest.param(3, marks=pytest.mark.soak), pytest.param(4, marks=pytest.mark.soak)])
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


@EVERY_MPI
def test_every_collective_is_right_without_torch_between(mpirun: MpiLauncher) -> None:
    """Each form, dtype and reduction of mpi/direct, in one group and in two; beside mpi."""
    direct = {"kind": "collective", "backend": "mpi/direct", "size": "12KiB"}
    config = sweep(benchmarks=[
        {**direct, "name": "forms", "collective": list(collectives()), "root": [0, 1],
         "in_place": [False, True], "groups": [1, 2]},
        {**direct, "name": "ops", "collective": ["all_reduce", "reduce", "reduce_scatter"],
         "dtype": DTYPES, "op": ["sum", "prod", "min", "max"]},
        {**direct, "name": "kept", "collective": "all_reduce", "dtype": DTYPES, "in_place": False,
         "op": ["sum", "prod", "min", "max"]},
        {**direct, "name": "cold", "backend": ["mpi", "mpi/direct"], "size": "32MiB",
         "collective": ["all_reduce", "all_gather"], "cache": "cold"},
        {**direct, "name": "moving", "collective": MOVING, "dtype": DTYPES},
        {**direct, "name": "beside", "collective": "all_reduce", "backend": ["mpi", "mpi/direct"]},
        {"kind": "primitive", "primitive": "tp_columnwise", "implementations": "torch",
         "m": 64, "n": 64, "k": 64, "backend": "mpi/direct"},
    ])
    outcome = read(mpirun.run(4, config=config, timeout=110).check().folder)
    ran = set()
    for item in outcome.results.cases:
        work = item.case.workload
        if item.case.kind != "collective":
            assert item.status == "skipped" and "single collectives only" in item.reason
        elif item.status == "skipped":
            assert "form" in item.reason or "in-place" in item.reason or (
                work.op and work.dtype in ("bf16", "fp16") and work.dtype in item.reason)
        else:
            assert item.status == "ok", (item.case.label, item.reason)
            assert item.n_wrong == (None if work.collective == "barrier" else 0), item.case.label
            assert {left["device_memory"]["how"] for left in item.detail.values()} == {"direct"}
            ran.add((item.case.backend, work.collective, work.in_place, work.groups))
    direct_forms = {(name, form) for backend, name, form, _ in ran if backend == "mpi/direct"}
    assert {name for name, _ in direct_forms} == set(collectives())
    assert direct_forms >= {("all_gather", False), ("all_gather", True)}
    assert {("mpi/direct", "all_reduce", form, 2) for form in (False, True)} <= ran
    mpirun.assert_no_orphans()


@pytest.mark.parametrize(("fault", "status", "words"), [
    ("wrong", "wrong", "1 of 256 elements"),
    ("desync", "timeout", "rank 1 called broadcast in iteration 0 while the other rank called")])
def test_faults_are_seen_without_torch_between(
    mpirun: MpiLauncher, fault: str, status: str, words: str,
) -> None:
    config = sweep("1KiB", block={"backend": "mpi/direct"}, launch={"timeout_s": 5},
                   fault=[{"case": "*", "rank": 1, "kind": fault, "iteration": 0}])
    job = mpirun.run(2, config=config, timeout=60)
    assert job.folder is not None
    (item,) = reduce_folder(job.folder).cases
    assert item.status == status and words in item.reason, item.reason


@pytest.mark.parametrize("ranks", [1, 3, pytest.param(4, marks=pytest.mark.soak)])
def test_gloo_and_mpi_side_by_side_and_on_sub_worlds(mpirun: MpiLauncher, ranks: int) -> None:
    worlds = [*range(1, ranks + 1)]
    config = sweep("8", "1KiB", block={"backend": ["gloo", "mpi"], "world_size": worlds},
                   measure={"warmup": 1, "iterations": 3, "passes": 2})
    job = mpirun.run(ranks, config=config, timeout=100).check()
    outcome, runs = read(job.folder), 2 * 2 * ranks  # two sizes, two passes
    assert set(outcome.status().values()) == {"ok"} and len(outcome.status()) == runs
    assert "note: backend mpi runs last" in job.stdout
    for item in outcome.results.cases:
        of_mpi = item.case.backend == "mpi"
        assert {rank: left["device_memory"]["how"] for rank, left in item.detail.items()} == (
            {str(rank): "direct" for rank in range(item.case.world_size)} if of_mpi else {})


@EVERY_MPI
def test_what_this_mpi_cannot_do_is_known_before_anything_starts(mpirun: MpiLauncher) -> None:
    command = [mpirun.program("python"), "-m", "hpcbench.backends.mpi_facts"]
    facts = json.loads(mpirun.run(1, command=command).check().stdout)
    assert facts["reason"] is None
    assert facts["cuda"]["aware"] in (True, False)  # both wheels can be asked
    assert "(MPIX_Query_cuda_support)" in facts["cuda"]["reason"]
    assert set(facts["lacks"]) <= {"fp16", "bf16"}

"""Backend mpi: right on both MPIs, beside gloo, and strong enough for training."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hpcbench.operations.collectives import collectives
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult
from launcher import EVERY_MPI, UNCOLLECTED, Finished, MpiLauncher, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

ON_GROUP = Path(__file__).with_name("on_mpi_group.py")
DTYPES = ["fp32", "fp64", "fp16", "bf16", "int32", "int64", "uint8"]
MOVING = ["all_gather", "all_to_all", "broadcast", "send_recv", "barrier"]


@pytest.mark.parametrize(("mpirun", "ranks"), [
    ("openmpi", 2), pytest.param("mpich", 3, marks=pytest.mark.soak)], indirect=["mpirun"])
def test_the_group_gives_what_gloo_gives(mpirun: MpiLauncher, ranks: int) -> None:
    """And the arithmetic of messages beyond 2**31 - 1, with an MPI that is said to count to 5."""
    assert _on_group(mpirun, ranks, "collectives", "counted").stdout.count("right") == 2 * ranks


@pytest.mark.parametrize(("mpirun", "ranks"), [
    ("mpich", 2), pytest.param("openmpi", 4, marks=pytest.mark.soak)], indirect=["mpirun"])
def test_training_steps_have_one_process_gradients(mpirun: MpiLauncher, ranks: int) -> None:
    assert _on_group(mpirun, ranks, "training").stdout.count("right") == ranks


@EVERY_MPI
@pytest.mark.soak
def test_a_case_of_2_gib_is_measured(mpirun: MpiLauncher) -> None:
    """What Open MPI once refused: MPI_ERR_ARG at a broadcast of 2**31 bytes."""
    config = sweep("2GiB", block={"collective": "broadcast", "backend": ["mpi", "mpi/direct"]},
                   measure={"warmup": 0, "iterations": 1, "validate": False},
                   launch={"timeout_s": 90})
    outcome = read(mpirun.run(2, config=config, timeout=300).check().folder)
    assert [item.status for item in outcome.results.cases] == ["ok", "ok"]


def _on_group(mpirun: MpiLauncher, ranks: int, *parts: str) -> Finished:
    command = [mpirun.program("python"), "-c", UNCOLLECTED, str(ON_GROUP), *parts]
    return mpirun.run(ranks, command=command, timeout=90).check()


OPS = ["sum", "prod", "min", "max"]
MPI = {"kind": "collective", "backend": "mpi", "dtype": DTYPES, "size": "100000"}
OF_TORCH = [
    {**MPI, "name": "moved", "collective": MOVING},
    {**MPI, "name": "in_place", "collective": "all_gather", "in_place": True, "size": "4KiB"},
    {**MPI, "name": "all_reduce", "collective": "all_reduce", "size": "12KiB",
     "op": [*OPS, "avg"]},
    {**MPI, "name": "reduce_scatter", "collective": "reduce_scatter", "size": "12KiB",
     "op": [*OPS, "avg"], "dtype": ["fp32", "bf16", "int64"]}]
ON_TWO = {"kind": "collective", "backend": "mpi/direct", "size": "12KiB", "world_size": 2}
"""What is the same on four ranks, which wait for one another where there are fewer cores."""
DIRECT = [
    {**ON_TWO, "name": "forms", "collective": list(collectives()), "root": [0, 1],
     "in_place": [False, True]},
    {**ON_TWO, "name": "groups", "collective": list(collectives()), "groups": 2,
     "in_place": [False, True], "world_size": 4},
    {**ON_TWO, "name": "ops", "collective": ["all_reduce", "reduce", "reduce_scatter"],
     "dtype": ["fp32", "fp16", "int64"], "op": OPS},
    {**ON_TWO, "name": "kept", "collective": "all_reduce", "dtype": DTYPES, "in_place": False,
     "op": OPS},
    {**ON_TWO, "name": "cold", "backend": ["mpi", "mpi/direct"], "size": "8MiB",
     "collective": ["all_reduce", "all_gather"], "cache": "cold"},
    {**ON_TWO, "name": "moving", "collective": MOVING, "dtype": ["bf16", "uint8"]},
    {**ON_TWO, "name": "beside", "collective": "all_reduce", "backend": ["mpi", "mpi/direct"]},
    {"kind": "primitive", "primitive": "tp_columnwise", "implementations": "torch",
     "m": 64, "n": 64, "k": 64, "backend": "mpi/direct"}]


@pytest.mark.parametrize(("mpirun", "ranks"), [
    ("mpich", 2), *(pytest.param(mpi, ranks, marks=pytest.mark.soak) for mpi, ranks in (
        ("mpich", 4), ("openmpi", 2), ("mpich", 3), ("openmpi", 3), ("openmpi", 4)))],
    indirect=["mpirun"])
def test_every_collective_dtype_and_op_is_right(mpirun: MpiLauncher, ranks: int) -> None:
    """Of mpi, and of two ranks each form of mpi/direct, too; of four ranks in two groups."""
    blocks = [{**block, "world_size": 2 if ranks == 4 else ranks} for block in OF_TORCH]
    direct = [block for block in DIRECT if block.get("world_size", 2) <= ranks != 3]
    config = sweep(benchmarks=[*blocks, *direct])
    outcome = read(mpirun.run(ranks, config=config, timeout=110).check().folder)
    ran = set()
    for item in outcome.results.cases:
        work, why = item.case.workload, (item.case.label, item.reason)
        if item.case.kind != "collective":
            assert item.status == "skipped" and "single collectives only" in item.reason
        elif item.status == "skipped":
            assert _cannot(item), why
        else:
            assert item.status == "ok" and not _cannot_average(item), why
            assert item.n_wrong == (None if work.collective == "barrier" else 0), why
            assert {left["device_memory"]["how"] for left in item.detail.values()} == {"direct"}
            ran.add((item.case.backend, work.collective, work.in_place, work.groups))
    if ranks != 3:
        direct_forms = {(name, form) for backend, name, form, _ in ran if backend == "mpi/direct"}
        assert {name for name, _ in direct_forms} == set(collectives())
        assert direct_forms >= {("all_gather", False), ("all_gather", True)}
    if ranks == 4:
        assert {("mpi/direct", "all_reduce", form, 2) for form in (False, True)} <= ran
    mpirun.assert_no_orphans()


def _cannot_average(item: CaseResult) -> bool:
    work = item.case.workload
    return bool(work.op == "avg" and work.dtype in ("int32", "int64", "uint8"))


def _cannot(item: CaseResult) -> bool:
    """Return whether a case is skipped for a right reason: MPICH 5.0 and Open MPI 5.0 cannot reduce
    bf16.
    """
    work, reason = item.case.workload, item.reason
    if _cannot_average(item):
        return "floating" in reason
    if item.case.backend == "mpi":
        return bool(work.op and work.dtype == "bf16" and "bf16" in reason)
    return "form" in reason or "in-place" in reason or bool(
        work.op and work.dtype in ("bf16", "fp16") and work.dtype in reason)


FAULTS = {"wrong": 1024, "desync": 2048}
"""Kind -> bytes of the case that it is injected into; the one that ends the job is last."""


@pytest.fixture(scope="module")
def faulty_cases(tmp_path_factory: pytest.TempPathFactory) -> list[CaseResult]:
    """Return what one job found of both faults."""
    config = sweep(*map(str, FAULTS.values()), block={"backend": ["mpi", "mpi/direct"]},
                   launch={"timeout_s": 4}, fault=[
        {"case": f"* mpi/direct * {size}B *", "rank": 1, "kind": kind, "iteration": 0}
        for kind, size in FAULTS.items()])
    job = launcher_for("mpich", tmp_path_factory.mktemp("faulty")).run(2, config=config, timeout=60)
    assert job.folder is not None
    return reduce_folder(job.folder).cases


@pytest.mark.parametrize(("fault", "status", "words"), [
    ("wrong", "wrong", "1 of 256 elements"),
    ("desync", "timeout", "rank 1 called broadcast in iteration 0 while the other rank called")])
def test_faults_are_seen_without_torch_between(
    faulty_cases: list[CaseResult], fault: str, status: str, words: str,
) -> None:
    """Beside a case of mpi that is right."""
    right, faulty = (item for item in faulty_cases
                     if item.case.workload.size_bytes == FAULTS[fault])
    assert (right.status, right.n_wrong, right.case.backend) == ("ok", 0, "mpi"), right.reason
    assert faulty.status == status and words in faulty.reason, faulty.reason


def test_gloo_and_mpi_side_by_side_and_on_sub_worlds(mpirun: MpiLauncher) -> None:
    config = sweep("1KiB", block={"backend": ["gloo", "mpi"], "world_size": [1, 2]},
                   measure={"passes": 2})
    job = mpirun.run(2, config=config, timeout=100).check()
    outcome = read(job.folder)
    assert [*outcome.status().values()] == ["ok"] * 4
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

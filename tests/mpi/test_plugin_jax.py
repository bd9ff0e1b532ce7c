"""plugins/hpcbench-jax under mpirun: real JAX on CPUs, checked like every implementation."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from reading import NOT_DRAWN, ONCE, Outcome, read

from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.reduce.results import CaseResult
from launcher import ROOT, launcher_for
from packages import install, path_with

pytestmark = [pytest.mark.mpi,
              pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")]
BLOCK = {"kind": "primitive", "m": 64, "n": 32, "k": 16, "backend": "gloo",
         "primitive": ["tp_columnwise", "tp_rowwise"], "implementations": "jax"}
ORDERS = {"AG_before", "AG_after", "RS_after", "AR_after"}
SWEEP: dict[str, Any] = {
    "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": NOT_DRAWN,
    "launch": {"timeout_s": 60}, "benchmarks": [
        {**BLOCK, "order": sorted(ORDERS)},
        {**BLOCK, "name": "dtypes", "dtype": ["bf16", "fp16", "fp64"]},
        {**BLOCK, "primitive": "tp_columnwise", "options": {"weight": "replicated"}},
        {**BLOCK, "k": 4096, "dtype": "bf16"},  # too long a sum to be exact
        {**BLOCK, "primitive": "tp_rowwise", "backend": "mpi"},
        {**BLOCK, "k": 32, "name": "hit"}, {**BLOCK, "world_size": 1},
    ],
    "fault": [{"case": "tp_columnwise jax*k=32*", "rank": 1, "kind": "wrong", "iteration": 1},
              {"case": "tp_rowwise jax*k=32*", "rank": 0, "kind": "kill", "iteration": 2}]}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the built package is installed."""
    return install(ROOT / "plugins/hpcbench-jax", tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def outcome(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what a job of 2 ranks found."""
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("jax"))
    job = launcher.run(2, config=SWEEP, env=path_with(target)).check(1)
    launcher.assert_no_orphans()
    assert "coordination service" not in job.stderr  # no rank was aborted when another had ended
    return read(job.folder)


def of_jax(outcome: Outcome) -> list[CaseResult]:
    return [item for item in outcome.results.cases
            if primitive_of(item.case).implementation == "jax"]


def test_every_order_and_dtype_is_right_on_one_rank_and_on_two(outcome: Outcome) -> None:
    whole = [item for item in of_jax(outcome) if item.case.block != "hit"
             and item.case.backend == "gloo"]
    assert {(item.status, item.reason, item.n_wrong) for item in whole} == {("ok", "", 0)}
    works = [primitive_of(item.case) for item in whole]
    assert {work.order for work in works} == ORDERS
    assert {work.dtype for work in works} == {"fp32", "bf16", "fp16", "fp64"}
    assert {item.case.world_size for item in whole} == {1, 2}


def test_it_is_no_other_librarys_number(outcome: Outcome) -> None:
    (skipped,) = [item for item in of_jax(outcome) if item.case.backend == "mpi"]
    assert (skipped.status, skipped.reason) == (
        "skipped", "jax runs with gloo or nccl only, not with mpi")


def test_what_goes_wrong_is_found_and_costs_one_case(outcome: Outcome) -> None:
    """A worker that dies takes none of the others with it: later cases are ok."""
    hit = {item.case.workload.name: item for item in of_jax(outcome) if item.case.block == "hit"}
    assert hit["tp_columnwise"].status == "wrong" and hit["tp_columnwise"].n_wrong == 1
    assert hit["tp_rowwise"].status == "failed" and "SIGKILL" in hit["tp_rowwise"].reason
    assert "rank 0" in hit["tp_rowwise"].reason
    last = [item for item in of_jax(outcome) if item.case.world_size == 1]
    assert last and {item.status for item in last} == {"ok"}


def test_ranks_without_workers_start_it_once_for_all_passes(
    target: Path, tmp_path_factory: pytest.TempPathFactory,
) -> None:
    """Each pass opens groups of torch anew. Cases of another number of ranks are refused."""
    block = {**BLOCK, "primitive": "tp_rowwise", "implementations": "jax", "world_size": [1, 2]}
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("inline"))
    job = launcher.run(2, "--inline", env=path_with(target), config={
        **SWEEP, "measure": {**SWEEP["measure"], "passes": 2}, "benchmarks": [block], "fault": []})
    cases = {item.case.world_size: item for item in read(job.check(1).folder).results.cases}
    whole = cases[2].statistics
    assert (cases[2].status, cases[2].reason) == ("ok", "")
    assert whole is not None and whole.n == 2 * SWEEP["measure"]["iterations"]
    assert "JAX starts once in a process" in cases[1].reason

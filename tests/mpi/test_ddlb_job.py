"""A sweep file of DDLB under mpirun, with the command line's overrides."""

from __future__ import annotations

import json

import pytest
from reading import QUICK, read

from hpcbench.kinds.primitive.plan.workload import primitive_of
from launcher import ROOT, MpiLauncher

GLOO = "benchmarks.0.implementations.pytorch.0.backend"


@pytest.mark.mpi
def test_it_runs_unchanged_but_for_what_the_command_line_sets(mpirun: MpiLauncher) -> None:
    config = json.loads((ROOT / "tests/data/ddlb.json").read_text())
    words = ["--benchmark", "primitive", "--warmup", "1", "--iters", "3", *QUICK]
    for key, value in {"measure.passes": 1, "benchmarks.0.m": 64, "benchmarks.0.n": 32,
                       "benchmarks.0.backend": "gloo", GLOO: '["gloo", "nccl"]'}.items():
        words += ["--set", f"{key}={value}"]
    job = mpirun.run(2, *words, config=config).check()
    outcome = read(job.folder)
    assert {(primitive_of(item.case).implementation, primitive_of(item.case).order,
             item.case.backend):
            item.status for item in outcome.results.cases if item.case.backend == "gloo"} == {
        ("compute_only", "AG_after", "gloo"): "ok", ("torch", "AG_before", "gloo"): "ok",
        ("torch", "AG_after", "gloo"): "ok"}
    cases = [item.case for item in outcome.results.cases]
    assert {(case.iterations, case.mode, case.validate) for case in cases} == {
        (3, "barrier_start", True)}
    assert len(cases) == 5
    assert job.stdout.count("\nBenchmark Results\n") == 1
    assert "error" not in job.stdout.lower()

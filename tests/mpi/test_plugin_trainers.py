"""plugins/hpcbench-trainers under mpirun: steps of other libraries, compared with one process."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from reading import NOT_DRAWN, ONCE, Outcome, read

from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from launcher import ROOT, launcher_for
from packages import install, path_with

pytestmark = [pytest.mark.mpi, pytest.mark.skipif(
    find_spec("accelerate") is None, reason="accelerate is not installed")]
OVER = ("single", "data", "fsdp")
BLOCK = {"kind": "training", "model": "llama3-8b", "layers": 2, "hidden": 32, "heads": 4,
         "kv_heads": 2, "vocab": 96, "seq_length": 16, "batch_size": 2, "backend": "gloo"}
EVERY = {"accelerate": {"over": OVER}, "torchtitan": {"over": OVER}}
SWEEP: dict[str, Any] = {
    "measure": {**ONCE, "warmup": 1, "iterations": 2}, "output": NOT_DRAWN,
    "launch": {"timeout_s": 120}, "benchmarks": [
        {**BLOCK, "strategies": EVERY}, {**BLOCK, "dtype": "bf16", "strategies": EVERY},
        {**BLOCK, "accumulation": 2, "strategies": {"accelerate": {"over": "data"}}},
        {**BLOCK, "name": "theirs", "library": "transformers",
         "strategies": {"accelerate": {"over": OVER}}},
        {**BLOCK, "name": "gpt2", "model": "gpt2", "kv_heads": 4,
         "library": ["hpcbench", "transformers"], "strategies": {"accelerate": {"over": "fsdp"}}}]}


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the built package is installed."""
    return install(ROOT / "plugins/hpcbench-trainers", tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="module")
def outcome(target: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """Return what a job of 2 ranks found."""
    launcher = launcher_for("mpich", tmp_path_factory.mktemp("trainers"))
    job = launcher.run(2, config=SWEEP, env=path_with(target)).check(0)
    launcher.assert_no_orphans()
    return read(job.folder)


def of(outcome: Outcome, strategy: str) -> list[CaseResult]:
    return [item for item in outcome.results.cases
            if training_of(item.case).strategy == strategy
            and training_of(item.case).accumulation == 1]


def assert_equal_to_one_process(cases: list[CaseResult]) -> None:
    assert {(item.status, item.reason, item.n_wrong) for item in cases} == {("ok", "", 0)}
    assert all(0 < item.detail["0"]["parity"]["share"] <= 1 for item in cases)
    assert {dict(training_of(item.case).options)["over"] for item in cases} == set(OVER)
    assert {training_of(item.case).dtype for item in cases} == {"fp32", "bf16"}


def test_accelerate_is_right_with_both_libraries_models(outcome: Outcome) -> None:
    cases = of(outcome, "accelerate")
    assert_equal_to_one_process(cases)
    assert {training_of(item.case).library for item in cases} == {"hpcbench", "transformers"}


def test_torchtitan_is_right_or_says_how_to_install_it(outcome: Outcome) -> None:
    cases = of(outcome, "torchtitan")
    if find_spec("torchtitan") is None:
        assert {item.status for item in cases} == {"skipped"}
        assert all("pip install --no-deps torchtitan==0.3.0" in item.reason for item in cases)
    else:
        assert_equal_to_one_process(cases)


def test_settings_that_they_are_not_prepared_for_are_skips(outcome: Outcome) -> None:
    (skipped,) = [item for item in outcome.results.cases
                  if training_of(item.case).accumulation == 2]
    assert (skipped.status, skipped.reason) == ("skipped", "accelerate has no accumulation 2 here")


@pytest.mark.timeout(400)
def test_the_benchmark_prints_a_ratio_for_each_way(target: Path) -> None:
    ways = ["single", "fsdp"]
    words = ["--passes", "2", "--steps", "1", "--models", "gpt2", "--over", *ways]
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/baselines.py"), *words], text=True,
        capture_output=True, timeout=380, env={**os.environ, **path_with(target)})
    assert done.returncode in (0, 1), done.stderr
    assert [line.split()[1] for line in done.stdout.splitlines() if ": " in line
            and "accelerate" in line] == ways

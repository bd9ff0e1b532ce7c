"""A dry run: any world size on one process, no measurement, and refusals that are told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.config.schema import Launch
from hpcbench.dry_run import trials
from hpcbench.kinds.training.plan.spec import strategies
from hpcbench.operations.collectives import collectives
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.report.plan_lines import print_trials


def plan(world_size: int = 64) -> Plan:
    block = {"kind": "collective", "collective": list(collectives()), "backend": ["gloo", "nccl"],
             "size": "64KiB", "world_size": ["all", 3]}
    return make_plan(check_config({"benchmarks": [block]}, "test"), world_size)


def test_every_collective_is_accepted_in_a_world_that_does_not_exist() -> None:
    found = list(trials(plan(), Launch()))
    assert [trial.case.case_id for trial in found] == [case.case_id for case in plan().cases]
    assert {trial.outcome for trial in found} == {"accepted"}, found


def test_a_refused_case_is_reported_and_the_next_one_goes_on() -> None:
    job = plan(4)
    first, second, *_ = job.cases
    strange = dataclasses.replace(first.workload, count=-1)
    huge = dataclasses.replace(second, memory_bytes=2**60)
    broken = dataclasses.replace(job, cases=(
        dataclasses.replace(first, workload=strange), huge, dataclasses.replace(first, skip="why"),
        second))
    found = list(trials(broken, Launch()))
    assert [trial.outcome for trial in found] == ["refused", "accepted", "skipped", "accepted"]
    assert "negative" in found[0].reason


def test_the_command_states_what_it_is_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "backend": "nccl", "size": "1KiB"}]}))
    words = [sys.executable, "-m", "hpcbench", "run", str(config), "--world-size", "512"]
    done = subprocess.run([*words, "--dry-run"], cwd=tmp_path, text=True, capture_output=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    *first, case, last = done.stdout.splitlines()
    assert "rank 0 of 512: no communication" in " ".join(" ".join(first).split())
    assert case == "accepted  all_reduce nccl cuda fp32 sum 1024B n=512"
    assert last == "dry run: 1 accepted (of 1 case)"
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60).returncode == 2


def test_every_strategy_is_accepted_and_calls_what_is_predicted(
    capsys: pytest.CaptureFixture[str],
) -> None:
    block = {"kind": "training", "model": "transformer-tiny", "layers": 4, "hidden": 64,
             "seq_length": 16, "vocab": 96, "batch_size": 4, "optimizer": "sgd",
             "strategies": {spec.name: {"tp": 2} if spec.name == "hybrid" else {}
                            for spec in strategies() if spec.name != "moe"}}
    job = make_plan(check_config({"benchmarks": [block]}, "test"), 4)
    assert print_trials(job, trials(job, Launch())) == 0
    lines = capsys.readouterr().out.splitlines()
    accepted = [line.split()[2] for line in lines if line.startswith("accepted")]
    others = [spec.name for spec in strategies() if spec.name not in (
        "single", "moe")]  # which has models of its own: test_fake_tensors.py
    assert accepted == [*others, "single"]  # fewer ranks come later
    assert sum("called by rank 0, as predicted: " in line for line in lines) == len(accepted)
    assert not [line for line in lines if "other than predicted" in line]
    pipeline = lines[next(at for at, line in enumerate(lines) if " pipeline " in line):]
    assert [line.split("blocks ")[1][:4] for line in pipeline if "with blocks" in line][:4] == [
        "0: 5", "1: 8", "2: 8", "3: 5"]  # a tied weight adds one at both ends
    assert "at most " in " ".join(pipeline[3:6])

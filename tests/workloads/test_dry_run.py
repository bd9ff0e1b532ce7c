"""A dry run: any world size on one process, no measurement, and refusals that are told."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

from hpcbench.config.load import check_config
from hpcbench.config.names import COLLECTIVES
from hpcbench.dry_run import trials
from hpcbench.plan.case import Plan
from hpcbench.plan.expand import make_plan
from hpcbench.plan.primitives.registry import PRIMITIVES


def plan(world_size: int = 64) -> Plan:
    block = {"kind": "collective", "collective": list(COLLECTIVES), "backend": ["gloo", "nccl"],
             "size": "64KiB", "world_size": ["all", 3]}
    return make_plan(check_config({"benchmarks": [block]}, "test"), world_size)


def test_every_collective_is_accepted_in_a_world_that_does_not_exist() -> None:
    found = list(trials(plan()))
    assert [trial.case.case_id for trial in found] == [case.case_id for case in plan().cases]
    assert {trial.outcome for trial in found} == {"accepted"}, found


def test_every_primitive_is_accepted_in_a_world_that_does_not_exist() -> None:
    names = ("compute_only", "comm_only", "torch", "functional", "dtensor", "chunked_pipeline",
             "p2p_ring")
    block = {"kind": "primitive", "m": 128, "n": 64, "k": 64, "implementations": list(names),
             "primitive": [spec.name for spec in PRIMITIVES], "options": {"chunks": 2},
             "order": list(dict.fromkeys(order for spec in PRIMITIVES for order in spec.orders))}
    found = list(trials(make_plan(check_config({"benchmarks": [block]}, "test"), 64)))
    tried = {trial.case.primitive.implementation for trial in found if trial.outcome == "accepted"}
    assert tried == set(names)
    assert all(trial.outcome == "accepted" or trial.case.skip for trial in found), found


def test_a_refused_case_is_told_and_the_next_one_goes_on() -> None:
    job = plan(4)
    first, second, *_ = job.cases
    strange = dataclasses.replace(first.workload, count=-1)
    huge = dataclasses.replace(second, memory_bytes=2**60)
    broken = dataclasses.replace(job, cases=(
        dataclasses.replace(first, workload=strange), huge, dataclasses.replace(first, skip="why"),
        second))
    found = list(trials(broken))
    assert [trial.outcome for trial in found] == ["refused", "not tried", "skipped", "accepted"]
    assert "negative" in found[0].reason
    assert "rank 0 needs" in found[1].reason


def test_the_command_says_what_it_is_and_leaves_nothing_behind(tmp_path: Path) -> None:
    config = tmp_path / "sweep.json"
    config.write_text(json.dumps({"benchmarks": [
        {"kind": "collective", "collective": "all_reduce", "backend": "nccl", "size": "1KiB"}]}))
    words = [sys.executable, "-m", "hpcbench", "run", str(config), "--world-size", "512"]
    done = subprocess.run([*words, "--dry-run"], cwd=tmp_path, text=True, capture_output=True,
                          timeout=60)
    assert done.returncode == 0, done.stderr
    first, case, last = done.stdout.splitlines()
    assert "rank 0 of 512: no communication" in first
    assert case == "accepted  all_reduce nccl cuda fp32 sum 1024B n=512"
    assert last == ("dry run, not a measurement: 1 cases = 1 accepted, 0 refused, 0 skipped, "
                    "0 not tried")
    assert [path.name for path in tmp_path.iterdir()] == ["sweep.json"]
    assert subprocess.run(words, cwd=tmp_path, capture_output=True, timeout=60).returncode == 2


def test_what_runs_on_gpus_only_is_not_tried() -> None:
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
             "implementations": ["symm_mem", "symm_mem_fallback"], "backend": "nccl"}
    job = make_plan(check_config({"benchmarks": [block]}, "test"), 4)
    assert [(trial.outcome, trial.reason) for trial in trials(job)] == [
        ("not tried", "symm_mem runs on cuda only"), ("accepted", "")]

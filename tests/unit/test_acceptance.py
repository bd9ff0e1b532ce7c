"""The folder of an acceptance test: sweeps that can be planned, a job that keeps its verdicts."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from hpcbench.answers.check import refuse_limits
from hpcbench.cli import COMMANDS
from hpcbench.config.load import load_config
from hpcbench.config.presets import HARDWARE
from hpcbench.errors import FileError, UsageError
from hpcbench.fleet.acceptance.folder import write_acceptance
from hpcbench.plan.expand import make_plan

STEPS = ("node", "pairs", "all", "training", "soak")


@pytest.mark.parametrize("hardware", [name for name in HARDWARE if name != "m4-metal"])
def test_each_step_can_be_planned(hardware: str, tmp_path: Path) -> None:
    write_acceptance(hardware, tmp_path / "a", force=False)
    for step in STEPS:
        plan = make_plan(load_config(tmp_path / "a" / f"{step}.yaml"), 8)
        refuse_limits(plan)
        assert any(case.skip is None for case in plan.cases), step
    limits = load_config(tmp_path / "a" / "node.yaml").limits
    assert len(limits) == {"cpu": 0, "a10-cluster": 1}.get(hardware, 2)
    signed = (tmp_path / "a" / "sign.md").read_text()
    assert all(f"| {step} |" in signed for step in STEPS)
    assert all(f"{limit.min:g}" in signed for limit in limits)


def test_what_is_there_stays_and_what_has_no_collectives_is_refused(tmp_path: Path) -> None:
    write_acceptance("cpu", tmp_path, force=False)
    (tmp_path / "job.sh").write_text("mine")
    with pytest.raises(FileError):
        write_acceptance("cpu", tmp_path, force=False)
    assert (tmp_path / "job.sh").read_text() == "mine"
    for hardware, output in (("m4-metal", tmp_path / "new"), (None, tmp_path), ("cpu", None)):
        with pytest.raises(UsageError):
            write_acceptance(hardware, output, force=True)
    assert not (tmp_path / "new").exists() and "gen-config acceptance" not in COMMANDS


@pytest.mark.parametrize(("codes", "expected"), [
    ({}, 0), ({"pairs": 3}, 3), ({"node": 3, "pairs": 1}, 1), ({"soak": 1, "all": 2}, 1),
    ({"node": 2, "pairs": 3}, 2)])
def test_the_job_keeps_a_verdict_of_each_step(
    codes: dict[str, int], expected: int, tmp_path: Path,
) -> None:
    """A stand-in for mpirun notes its words, and ends with the code of the step."""
    write_acceptance("cpu", tmp_path, force=False)
    cases = "\n".join(f"*results/{step}) exit {code} ;;" for step, code in codes.items())
    mpirun = tmp_path / "bin" / "mpirun"
    mpirun.parent.mkdir()
    mpirun.write_text(f'#!/bin/sh\necho "$*" >>{tmp_path}/words\n'
                      f"case $* in\n{cases}\n*) ;;\nesac\n")
    mpirun.chmod(0o755)
    variables = {"PATH": f"{mpirun.parent}:{os.environ['PATH']}", "RANKS_A_NODE": "2",
                 "RANKS": "6", "SOAK": "1h"}
    done = subprocess.run(["bash", str(tmp_path / "job.sh")], env=variables, cwd="/",
                          capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == expected, done.stderr
    words = (tmp_path / "words").read_text().splitlines()
    assert [line.split()[1] for line in words] == ["2", "6", "6", "6", "6"]
    assert words[4].endswith("soak soak.yaml --for 1h --resume results/soak")
    verdicts = [line.split()[1:5:3] for line in (
        tmp_path / "verdicts.txt").read_text().splitlines()]
    assert verdicts == [[step, {0: "PASS", 3: "INCOMPLETE"}.get(codes.get(step, 0), "FAIL")]
                        for step in STEPS]

"""Machines with GPUs that NVML tells of, or crashes or hangs on: the ordinary commands, on gloo.

This torch is a CPU build, so no rank takes a GPU, and telemetry follows none.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from bad_input_process import hpcbench
from launcher import ROOT, Finished, MpiLauncher
from mpi.reading import read, sweep
from nvml_standins import Standins

pytestmark = pytest.mark.mpi
CRASHED = "ended by signal 11 (SIGSEGV) in nvmlDeviceGetGpuFabricInfoV"
HUNG = "gave no answer in 0.7 s in nvmlDeviceGetGpuFabricInfoV"
MACHINES: Mapping[str, tuple[str | None, str | None]] = {
    "h100": ("NV18", None), "denied": (None, None), "crashes": (None, CRASHED),
    "sleeps": (None, HUNG)}
"""Machine -> how its first two GPUs are joined, and how the child that asked NVML ended; unit tests
read the GPUs and links of others."""


def run(mpirun: MpiLauncher, standins: Standins, machine: str) -> Finished:
    config = sweep("64KiB", "1MiB", launch={"timeout_s": 30})
    return mpirun.run(2, config=config, env={"LD_LIBRARY_PATH": str(standins.folder(machine))})


def words(mpirun: MpiLauncher, *command: str) -> tuple[str, ...]:
    return (mpirun.program("python"), "-m", "hpcbench", *command)


@pytest.mark.parametrize("machine", MACHINES)
def test_a_run_on_gloo_is_whole(mpirun: MpiLauncher, standins: Standins, machine: str) -> None:
    link, lost = MACHINES[machine]
    job = run(mpirun, standins, machine).check()
    outcome = read(job.folder)
    assert set(outcome.status().values()) == {"ok"}
    found = outcome.results
    if lost or machine == "denied":
        assert [place.matrix for place in found.topology.ranks] == [None if lost else 0] * 2
    else:
        (matrix,) = found.topology.gpus
        assert matrix.links[0][min(1, len(matrix.links) - 1)] == link
    findings = [one for one in found.findings if one.code == "HB159"]
    told = found.run.environment.get("lost", {})
    assert len(findings) == len(told) == bool(lost)
    if lost:
        (finding,) = findings
        assert finding.scope == "note" and finding.message.startswith("rank 0-1 (")
        assert lost in finding.message and "; see whether nvidia-smi" in finding.message
        assert lost in told["nvml"] and lost in job.stdout
    assert ["gpu" in one.missing for one in found.telemetry] == [True] * 2
    mpirun.assert_no_orphans()


@pytest.mark.parametrize(("machine", "words"), [
    ("h100", "but there is a driver (NVIDIA 580.65.06): name a Python"),
    ("start_crashes", "a driver (NVIDIA; the NVML probe ended by"),
    ("none", "")])
def test_a_session_on_a_torch_without_cuda_is_one_line(
    standins: Standins, tmp_path: Path, machine: str, words: str,
) -> None:
    (tmp_path / "nvidia-smi").touch(0o755)  # by which the script sees that there is a GPU
    done = subprocess.run(
        ["bash", str(ROOT / "benchmarks/gpu.sh"), "--no-setup", "-o", str(tmp_path / "session")],
        env={**os.environ, "LD_LIBRARY_PATH": str(standins.folder(machine)),
             "PATH": f"{tmp_path}:{os.environ['PATH']}", "HPCBENCH_PYTHON": sys.executable},
        text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=200, check=False)
    assert done.returncode == 5, done.stdout
    (line,) = done.stdout.splitlines()
    assert "no GPU: torch " in line and "is a CPU build" in line and words in line
    assert "unknown" not in line and ("SIGSEGV" in line) == (machine == "start_crashes")
    assert not (tmp_path / "session").exists()


def answer(mpirun: MpiLauncher, standins: Standins, machine: str, np: int, *command: str) -> Any:
    job = mpirun.run(np, command=words(mpirun, *command),
                     env={"LD_LIBRARY_PATH": str(standins.folder(machine))})
    return json.loads(job.check().stdout)


@pytest.mark.parametrize(("machine", "lost"), [("h100", None), ("crashes", CRASHED)])
def test_list_names_what_the_probe_lost(
    standins: Standins, machine: str, lost: str | None,
) -> None:
    """In this process: it asks NVML and torch in others."""
    done = hpcbench("list", "--json", LD_LIBRARY_PATH=str(standins.folder(machine)))
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["backends"]["gloo"]["available"]
    assert document["versions"]["nvidia_driver"] == "580.65.06"
    assert [*document["lost"]] == (["nvml"] if lost else [])
    assert not lost or lost in document["lost"]["nvml"]


@pytest.mark.parametrize(("machine", "lost"), [("h100", None), ("crashes", CRASHED)])
def test_validate_warns_of_what_the_probe_lost(
    mpirun: MpiLauncher, standins: Standins, machine: str, lost: str | None,
) -> None:
    document = answer(mpirun, standins, machine, 0, "validate", "--json", "--timeout", "20")
    (line,) = [one for one in document["lines"] if one["subject"] == "probe"]
    assert line["state"] == ("warn" if lost else "ok")
    if lost:
        assert lost in line["found"] and "nvidia-smi" in line["fix"]


def test_a_sweep_is_generated_without_asking_nvml(mpirun: MpiLauncher, standins: Standins) -> None:
    job = mpirun.run(0, command=words(mpirun, "gen-config", "--hardware", "h100-nvlink"),
                     env={"LD_LIBRARY_PATH": str(standins.folder("start_crashes"))})
    assert "benchmarks:" in job.check().stdout


@pytest.mark.parametrize(("machine", "ranks"), [
    ("h100", 8), ("none", 2), ("start_crashes", 2)])
def test_profile_starts_a_rank_for_each_gpu_that_is_counted(
    mpirun: MpiLauncher, standins: Standins, machine: str, ranks: int,
) -> None:
    script = "from hpcbench.launch.session import default_ranks; print(default_ranks())"
    job = mpirun.run(0, command=(mpirun.program("python"), "-c", script),
                     env={"LD_LIBRARY_PATH": str(standins.folder(machine))}).check()
    assert int(job.stdout) == ranks
    assert ("(SIGSEGV)" in job.stderr) is (machine == "start_crashes")

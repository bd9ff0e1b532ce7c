"""Ranks that torchrun started: measured as others, but inline, and the output says so."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from launcher import MpiLauncher, free_ports
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi


def torchrun(
    mpirun: MpiLauncher, folder: Path, *options: str, before: tuple[str, ...] = (),
    command: tuple[str, ...] = ("run", "config.json", "-o", "out"), **additions: str,
) -> subprocess.CompletedProcess[str]:
    """Run a command of hpcbench under torchrun, in the folder; by default the sweep there."""
    return subprocess.run(
        [*before, mpirun.program("torchrun"), *options, "-m", "hpcbench", *command],
        cwd=folder, env=mpirun.environment(folder, additions), capture_output=True, text=True,
        timeout=90, check=False)


@pytest.mark.parametrize("ranks", [1, 2])
def test_ranks_of_torchrun_run_inline_and_are_not_isolated(
    mpirun: MpiLauncher, tmp_path: Path, ranks: int,
) -> None:
    """Inside a job step of Slurm with one task a node, as torchrun is started there."""
    config = sweep("8", block={"backend": ["gloo", "mpi"], "world_size": [1, ranks]})
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = torchrun(mpirun, tmp_path, f"--nproc-per-node={ranks}", SLURM_STEP_ID="0",
                    SLURM_PROCID="0", SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "unisolated" in done.stdout and "(torchrun;" in done.stdout
    outcome = read(tmp_path / "out" / "latest")
    assert outcome.results.run.ranks_present == tuple(range(ranks))
    assert outcome.results.plan.config["launch"]["inline"] is True
    for item in outcome.results.cases:
        if item.case.backend == "gloo":
            assert item.status == "ok"
            samples = outcome.samples[item.case.case_id]
            assert samples is not None and len(samples.ranks) == item.case.world_size
        else:
            assert item.status == "skipped" and "torchrun started the ranks" in item.reason


def by_hand(
    mpirun: MpiLauncher, folder: Path, ranks: tuple[int, ...], size: int, *words: str,
) -> list[subprocess.Popen[str]]:
    """Start hpcbench as these ranks of ``size``, with torchrun's variables and no torchrun."""
    port = str(*free_ports(1))
    return [subprocess.Popen(
        [mpirun.program("python"), "-m", "hpcbench", *words],
        cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=mpirun.environment(folder, {
            "TORCHELASTIC_RUN_ID": "job", "RANK": str(rank), "WORLD_SIZE": str(size),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
        for rank in ranks]


def test_an_error_is_reported_once_under_torchrun(mpirun: MpiLauncher, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sweep("8", colour="blue")))
    started = by_hand(mpirun, tmp_path, (0, 1), 2, "run", "config.json", "-o", "out")
    printed = "".join(process.communicate(timeout=60)[0] for process in started)
    assert all(process.returncode for process in started), printed
    told = [line for line in printed.splitlines() if line.startswith("hpcbench:")]
    assert len(told) == 1 and "colour" in told[0], printed
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [
    (0, 1, 1), pytest.param((0, 0), marks=pytest.mark.soak)])
def test_two_processes_of_one_rank_are_refused_by_name(
    mpirun: MpiLauncher, tmp_path: Path, ranks: tuple[int, ...],
) -> None:
    """What two nodes with the same --node-rank come to."""
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    started = by_hand(mpirun, tmp_path, ranks, len(ranks), "run", "config.json", "-o", "out")
    told = "".join(process.communicate(timeout=60)[0] for process in started)
    assert {process.returncode for process in started} == {2}, told
    assert f"hpcbench: two processes are rank {ranks[-1]}: process " in told, told
    assert "Traceback" not in told and not (tmp_path / "out").exists()


@pytest.mark.soak
@pytest.mark.parametrize(("ranks", "words"), [
    ((0, 1), "2 of 4 ranks have not come in 15 s: 2, 3"),
    ((0, 1, 1), "two processes are rank 1: process ")])
def test_validate_states_in_one_line_why_ranks_do_not_meet(
    mpirun: MpiLauncher, tmp_path: Path, ranks: tuple[int, ...], words: str,
) -> None:
    started = by_hand(mpirun, tmp_path, ranks, 4, "validate", "--timeout", "15")
    first, *others = [process.communicate(timeout=120)[0] for process in started]
    found = [line for line in first.splitlines() if line.split()[:2] == ["fail", "ranks"]]
    assert len(found) == 1 and words in found[0], first
    assert "mpi4py" not in first and "MPI sees" not in first and "MPI did not start" not in first
    assert started[0].returncode == 1
    assert not any("Traceback" in told for told in (first, *others)), others

"""Ranks that torchrun started: measured as others, but inline, and the output says so."""

from __future__ import annotations

import json
import socket
import subprocess
from pathlib import Path

import pytest

import virtual_hosts
from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi


def torchrun(
    mpirun: MpiLauncher, folder: Path, *options: str, before: tuple[str, ...] = (),
    **additions: str,
) -> subprocess.CompletedProcess[str]:
    """Run the sweep in config.json under torchrun, in the folder."""
    return subprocess.run(
        [*before, mpirun.program("torchrun"), *options, "-m", "hpcbench", "run", "config.json",
         "-o", "out"],
        cwd=folder, env=mpirun.environment(folder, additions), capture_output=True, text=True,
        timeout=90, check=False)


def test_ranks_of_torchrun_run_inline_and_are_not_isolated(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Inside a job step of Slurm with one task a node, as torchrun is started there."""
    config = sweep("8", block={"backend": ["gloo", "mpi"], "world_size": [1, 2]})
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = torchrun(mpirun, tmp_path, "--nproc-per-node=2", SLURM_STEP_ID="0", SLURM_PROCID="0",
                    SLURM_STEP_NUM_TASKS="1", SLURM_NTASKS="1")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "are not isolated" in done.stdout and "(torchrun;" in done.stdout
    outcome = read(tmp_path / "out" / "latest")
    assert outcome.results.run.ranks_present == (0, 1)
    assert outcome.results.plan.config["launch"]["inline"] is True
    for item in outcome.results.cases:
        if item.case.backend == "gloo":
            assert item.status == "ok"
            samples = outcome.samples[item.case.case_id]
            assert samples is not None and len(samples.ranks) == item.case.world_size
        else:
            assert item.status == "skipped" and "torchrun started the ranks" in item.reason


def test_an_error_is_told_once_under_torchrun(mpirun: MpiLauncher, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sweep("8", colour="blue")))
    done = torchrun(mpirun, tmp_path, "--nproc-per-node=2")
    assert done.returncode != 0
    told = [line for line in done.stderr.splitlines() if line.startswith("hpcbench:")]
    assert len(told) == 1 and "colour" in told[0], done.stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("ranks", [
    (0, 1, 1), pytest.param((0, 0), marks=pytest.mark.soak)])
def test_two_processes_of_one_rank_are_refused_by_name(
    mpirun: MpiLauncher, tmp_path: Path, ranks: tuple[int, ...],
) -> None:
    """What two nodes with the same --node-rank come to."""
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    started = [subprocess.Popen(
        [mpirun.program("python"), "-m", "hpcbench", "run", "config.json", "-o", "out"],
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env=mpirun.environment(tmp_path, {
            "TORCHELASTIC_RUN_ID": "job", "RANK": str(rank), "WORLD_SIZE": str(len(ranks)),
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}))
        for rank in ranks]
    told = "".join(process.communicate(timeout=60)[0] for process in started)
    assert {process.returncode for process in started} == {2}, told
    assert f"hpcbench: two processes are rank {ranks[-1]}: process " in told, told
    assert "Traceback" not in told and not (tmp_path / "out").exists()


@pytest.mark.soak
def test_torchrun_on_two_hosts(mpirun: MpiLauncher, tmp_path: Path) -> None:
    """One torchrun on each, as srun --ntasks-per-node=1 starts them."""
    if why := virtual_hosts.why_not():
        pytest.skip(f"no virtual hosts: {why}")
    (tmp_path / "config.json").write_text(json.dumps(sweep("8", "64KiB")))
    program, script = mpirun.program("torchrun"), virtual_hosts.SCRIPT
    one = (f"{program} --nnodes=2 --nproc-per-node=2 --master-addr=vh1 --master-port=29400 "
           "--node-rank={} -m hpcbench run config.json -o out")
    both = f"{script} vh2 exec {one.format(1)} & {one.format(0)}; code=$?; wait; exit $code"
    done = subprocess.run(
        [*virtual_hosts.inside(2), "sh", "-c", both], cwd=tmp_path,
        env=mpirun.environment(tmp_path, {}), capture_output=True, text=True, timeout=90,
        check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    outcome = read(tmp_path / "out" / "latest")
    assert set(outcome.status().values()) == {"ok"}
    assert len(outcome.results.run.nodes) == 2

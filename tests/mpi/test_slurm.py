"""The job files of slurm/ on a real Slurm, and what its launchers make of ranks and GPUs."""

from __future__ import annotations

import csv
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from launcher import EVERY_MPI_IF_ALL, MpiLauncher, launcher_for
from mpi.on_slurm import (
    BATCHES,
    PARTITIONS,
    Batch,
    Ended,
    assert_measured_by_every_rank,
    assert_ranks_and_devices,
    checkout,
    ended,
    environment,
    require_slurm,
)
from mpi.reading import QUICK, sweep
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
BY_NAME = {batch.file: batch for batch in BATCHES}
SMOKE = BY_NAME["smoke.sbatch"]
A_RANK_A_NODE = "--ntasks-per-node=1"
CUT_OFF = "value not properly terminated"
"""Of srun's plug-in, which reads PMI-1 once, at most 1024 bytes, where MPICH's lines may be longer:
how long depends on how well what happens to be in memory is compressed (docs/troubleshooting.md).
Such a job is submitted again."""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of ten nodes; jobs still running at the end are cancelled."""
    require_slurm()
    with SlurmCluster(tmp_path_factory.mktemp("slurm") / "cluster", PARTITIONS) as cluster:
        yield cluster


def submit(
    slurm: SlurmCluster, mpirun: MpiLauncher, batch: Batch, *options: str,
    arguments: tuple[str, ...] | None = None, **variables: str,
) -> Ended:
    """Run a job file to its end, ``options`` being sbatch's."""
    folder = checkout(mpirun.folder / batch.file, batch)
    given = batch.arguments if arguments is None else arguments
    job = slurm.submit(*options, f"slurm/{batch.file}", *given, cwd=folder,
                       env=environment(mpirun, folder, **variables))
    return ended(slurm.exit_code(job), folder)


def submit_under_pmi2(
    slurm: SlurmCluster, mpirun: MpiLauncher, batch: Batch, *options: str, **more: Any,
) -> Ended:
    """Do the same with ranks of srun; once more if Slurm cut off what MPICH told it."""
    done = submit(slurm, mpirun, batch, *options, HPCBENCH_LAUNCHER="srun", **more)
    if CUT_OFF not in done.output:
        return done
    print("submitted again: Slurm cut off a line of PMI-1")
    shutil.rmtree(mpirun.folder / batch.file)
    return submit(slurm, mpirun, batch, *options, HPCBENCH_LAUNCHER="srun", **more)


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("file", [
    name if name == "cpu.sbatch" else
    pytest.param(name, marks=pytest.mark.soak) for name in BY_NAME])
def test_a_job_file_works_after_editing_account_and_partition(
    slurm: SlurmCluster, mpirun: MpiLauncher, file: str,
) -> None:
    done = submit(slurm, mpirun, BY_NAME[file]).check()
    assert_ranks_and_devices(done, BY_NAME[file])
    outcome = done.outcome()
    assert_measured_by_every_rank(outcome)
    if file == "cpu.sbatch":
        assert_measured_by_every_rank(outcome, "mpi")
    assert (done.results / "summary.json").exists()
    assert "exit code 0" in done.output


def test_the_exit_code_is_passed_on(slurm: SlurmCluster, mpirun: MpiLauncher) -> None:
    done = submit(slurm, mpirun, SMOKE, A_RANK_A_NODE, arguments=("--set", "nonsense=1")).check(2)
    assert "nonsense" in done.output


def test_srun_starts_ranks_of_mpich_and_may_show_each_a_gpu(
    slurm: SlurmCluster, mpirun: MpiLauncher,
) -> None:
    """On one node; those of more are scancelled below."""
    on_gpus = replace(SMOKE, partition="v100", ranks_by_node={"v100-1": 2})
    done = submit_under_pmi2(slurm, mpirun, on_gpus, "--nodes=1", "--gpus-per-task=1",
                             arguments=("--only", "all_reduce * 1024B *", *QUICK)).check()
    assert "srun --mpi=pmi2" in done.output
    assert_measured_by_every_rank(done.outcome())
    assert [(header.environment["scheduler"]["SLURMD_NODENAME"],
             header.environment["variables"]["CUDA_VISIBLE_DEVICES"])
            for header in done.headers()] == [
        ("v100-1", "0"), ("v100-1", "1")]


@pytest.mark.parametrize(("mpi", "plugin", "fix"), [
    ("mpich", "none", "MPICH needs srun --mpi=pmi2"),
    ("openmpi", "pmi2", "Open MPI needs srun --mpi=pmix"),
    pytest.param("openmpi", "none", "Open MPI needs srun --mpi=pmix", marks=pytest.mark.soak),
])
def test_ranks_that_are_alone_in_their_mpi_are_refused(
    slurm: SlurmCluster, tmp_path: Path, mpi: str, plugin: str, fix: str,
) -> None:
    mpirun = launcher_for(mpi, tmp_path)
    done = slurm.run("srun", "-p", "cpu", "-N2", "--ntasks-per-node=2", f"--mpi={plugin}",
                     mpirun.program("python"), "-m", "hpcbench", "run", cwd=tmp_path,
                     env=environment(mpirun, tmp_path))
    told = [line for line in done.stdout.splitlines() if line.startswith("hpcbench:")]
    assert done.returncode == 2 and len(told) == 1, done.stdout
    assert fix in told[0]
    assert not (tmp_path / "results").exists()


def test_python_in_a_batch_shell_is_one_rank(
    slurm: SlurmCluster, mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Slurm's variables say SLURM_NTASKS=4 and SLURM_PROCID=0 there; only one was started."""
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    job = slurm.submit("-p", "cpu", "-N2", "--ntasks-per-node=2", "--wrap",
                       "python -m hpcbench run -o results", cwd=tmp_path,
                       env=environment(mpirun, tmp_path))
    done = ended(slurm.exit_code(job), tmp_path).check()
    assert [header.world_size for header in done.headers()] == [1]


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("through", [
    "mpirun", pytest.param("srun", marks=pytest.mark.soak)])
def test_usr1_finishes_the_case_and_the_job_goes_on_when_it_starts_again(
    slurm: SlurmCluster, mpirun: MpiLauncher, through: str,
) -> None:
    """What --signal=B:USR1 sends before the time limit, sent by hand: nothing is run twice."""
    done = _signalled(slurm, mpirun, through, "--signal=USR1", "--batch").check()
    outcome = done.outcome()
    assert_measured_by_every_rank(outcome)
    assert len(outcome.results.cases) == 5 and "HB150" in outcome.codes()
    assert "exit code 3" in done.output
    assert "stopped before the time limit" in " ".join(done.output.split())
    runs = re.findall(r"ok +(all_reduce.*?)  ", done.output)
    assert len(runs) == len(set(runs)) == 5, done.output
    assert len(done.headers()) == 2 and (done.results / "traces" / "attempt1").is_dir()


@pytest.mark.parametrize("through", [
    "srun", pytest.param("mpirun", marks=pytest.mark.soak)])
def test_scancel_seals_what_there_is(
    slurm: SlurmCluster, mpirun: MpiLauncher, through: str,
) -> None:
    """Slurm sends SIGTERM to every process of a step; the ranks' notices cross its nodes."""
    done = _signalled(slurm, mpirun, through)
    assert "not_run" in done.outcome().status().values()
    assert len(done.headers()) == 2


def _signalled(
    slurm: SlurmCluster, mpirun: MpiLauncher, through: str, *scancel: str,
) -> Ended:
    """Run a job of some cases; after the first, call scancel with these options."""
    job, folder = _begun(slurm, mpirun, through)
    slurm.run("scancel", *scancel, job)
    return ended(slurm.exit_code(job), folder)


def _begun(slurm: SlurmCluster, mpirun: MpiLauncher, through: str) -> tuple[str, Path]:
    """Start a job of which the third case lasts long, and wait until the first is done."""
    folder = checkout(mpirun.folder / "signalled", SMOKE)
    config = sweep(*(str(16 * number) for number in range(1, 6)), fault=[
        {"case": "* 48B *", "rank": 1, "kind": "slow", "iteration": 0, "seconds": 5}])
    (folder / "long.json").write_text(json.dumps(config))
    job = slurm.submit(A_RANK_A_NODE, "slurm/smoke.sbatch", "long.json", cwd=folder,
                       env=environment(mpirun, folder, HPCBENCH_LAUNCHER=through))
    deadline = time.monotonic() + 120
    while "[1/5]" not in (told := ended(-1, folder).output):
        if CUT_OFF in told:
            slurm.run("scancel", job)
            slurm.exit_code(job)
            shutil.rmtree(folder)
            return _begun(slurm, mpirun, through)
        assert time.monotonic() < deadline, told
        time.sleep(0.1)
    return job, folder


@pytest.mark.soak
def test_jobs_that_follow_one_another_make_a_scaling_curve(
    slurm: SlurmCluster, mpirun: MpiLauncher,
) -> None:
    folder = checkout(mpirun.folder / "curve", SMOKE)
    told = slurm.run("bash", "slurm/scaling.sh", "slurm/smoke.sbatch", "1", "2", cwd=folder,
                     env=environment(mpirun, folder))
    jobs = [word for word in told.stdout.split() if word.isdigit()]
    assert [slurm.exit_code(job) for job in jobs] == [0, 0, 0], ended(-1, folder).output
    (curve,) = folder.glob("results/*/scaling.csv")
    rows = list(csv.DictReader(curve.read_text().splitlines()))
    assert {row["world_size"] for row in rows} == {"2", "4"}
    assert all(float(row["median_s"]) > 0 for row in rows)
    assert curve.with_suffix(".png").stat().st_size > 1000


def test_a_hunt_names_nodes_as_slurm_does(
    slurm: SlurmCluster, mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Ranks of srun meet without MPI; its list of nodes is one that srun takes."""
    env = environment(mpirun, tmp_path)
    done = slurm.run("srun", "-p", "cpu", "-N2", "-n3", "--distribution=block", "--no-kill",
                     mpirun.program("python"), "-m", "hpcbench", "hunt", "-o", "hunts", "--in-turn",
                     "--stage-seconds", "1", cwd=tmp_path, env=env)
    (file,) = tmp_path.glob("hunts/hunt-*/hunt.json")
    hunt = json.loads(file.read_bytes())
    assert done.returncode == 3, done.stdout
    assert {node["name"]: node["ranks"] for node in hunt["job"]["nodes"]} == {
        "cpu-1": [0, 1], "cpu-2": [2]}
    assert [(one["node"], one["verdict"]) for one in hunt["verdicts"]] == [
        ("cpu-1", "untested"), ("cpu-2", "untested")]
    (tmp_path / "bad_nodes.txt").write_text("cpu-1\n")
    left = slurm.run("srun", "-p", "cpu", "-N1", "--exclude=./bad_nodes.txt", "printenv",
                     "SLURMD_NODENAME", cwd=tmp_path, env=env, stderr=subprocess.PIPE)
    assert left.stdout == "cpu-2\n", left.stderr  # where srun says that a job waits for its nodes

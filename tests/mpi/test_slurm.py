"""The job files of slurm/ on a real Slurm, and what its launchers make of ranks and GPUs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

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
from mpi.reading import sweep
from slurm_cluster import SlurmCluster

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(300)]
BY_NAME = {batch.file: batch for batch in BATCHES}
SMOKE = BY_NAME["smoke.sbatch"]


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SlurmCluster]:
    """A cluster of nine nodes; jobs still running at the end are cancelled."""
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
    done = slurm.run("sbatch", "--wait", *options, f"slurm/{batch.file}", *given, cwd=folder,
                     env=environment(mpirun, folder, **variables), timeout=240)
    assert "Submitted batch job" in done.stdout, done.stdout
    return ended(done.returncode, folder)


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("file", BY_NAME)
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
    done = submit(slurm, mpirun, SMOKE, arguments=("--set", "nonsense=1")).check(2)
    assert "nonsense" in done.output


def test_a_rank_of_srun_is_one_of_mpich(slurm: SlurmCluster, mpirun: MpiLauncher) -> None:
    done = submit(slurm, mpirun, SMOKE, arguments=("--iters", "2"), HPCBENCH_LAUNCHER="srun")
    assert_ranks_and_devices(done.check(), SMOKE)
    assert_measured_by_every_rank(done.outcome())
    assert "srun --mpi=pmi2" in done.output


@pytest.mark.soak
def test_a_rank_of_srun_is_one_of_open_mpi(slurm: SlurmCluster, tmp_path: Path) -> None:
    done = submit(slurm, launcher_for("openmpi", tmp_path), SMOKE, arguments=("--iters", "2"),
                  HPCBENCH_LAUNCHER="srun")
    assert_ranks_and_devices(done.check(), SMOKE)
    assert_measured_by_every_rank(done.outcome())
    assert "srun --mpi=pmix" in done.output


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
    assert "started 4 ranks, but MPI sees 1" in told[0] and fix in told[0]
    assert not (tmp_path / "results").exists()


def test_python_in_a_batch_shell_is_one_rank(
    slurm: SlurmCluster, mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Slurm's variables say SLURM_NTASKS=4 and SLURM_PROCID=0 there; only one was started."""
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    done = slurm.run("sbatch", "--wait", "-p", "cpu", "-N2", "--ntasks-per-node=2", "--wrap",
                     "python -m hpcbench run", cwd=tmp_path, env=environment(mpirun, tmp_path))
    assert done.returncode == 0, [path.read_text() for path in tmp_path.glob("*.out")]
    (latest,) = tmp_path.glob("results/latest")
    assert Ended(0, "", latest).folder.exists()


def test_each_task_may_be_shown_a_gpu_of_its_own(
    slurm: SlurmCluster, mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(sweep("8")))
    done = slurm.run("srun", "-p", "v100", "-N2", "--ntasks-per-node=2", "--gpus-per-task=1",
                     "--mpi=pmi2", mpirun.program("python"), "-m", "hpcbench", "run",
                     "-o", "results/job", cwd=tmp_path, env=environment(mpirun, tmp_path))
    headers = ended(done.returncode, tmp_path).check().headers()
    assert [(header.environment["scheduler"]["SLURMD_NODENAME"],
             header.environment["variables"]["CUDA_VISIBLE_DEVICES"]) for header in headers] == [
        ("v100-1", "0"), ("v100-1", "1"), ("v100-2", "0"), ("v100-2", "1")]


LONG = {"measure.warmup": "0", "measure.mode": "barrier_start"}


@EVERY_MPI_IF_ALL
@pytest.mark.parametrize("through", [
    "mpirun", pytest.param("srun", marks=pytest.mark.soak)])
def test_usr1_finishes_the_case_and_seals(
    slurm: SlurmCluster, mpirun: MpiLauncher, through: str,
) -> None:
    """What --signal=B:USR1 sends before the time limit, sent by hand."""
    done = _signalled(slurm, mpirun, through, "--signal=USR1", "--batch").check(3)
    statuses = list(done.outcome().status().values())
    assert statuses[0] == "ok" and statuses[-1] == "not_run", statuses
    assert "failed" not in statuses
    assert len(done.headers()) == 4


@pytest.mark.soak
def test_scancel_seals_what_there_is(slurm: SlurmCluster, mpirun: MpiLauncher) -> None:
    done = _signalled(slurm, mpirun, "mpirun")
    assert "not_run" in done.outcome().status().values()
    assert len(done.headers()) == 4


def _signalled(
    slurm: SlurmCluster, mpirun: MpiLauncher, through: str, *scancel: str,
) -> Ended:
    """Run a job of many cases; after the first, call scancel with these options."""
    folder = checkout(mpirun.folder / "signalled", SMOKE)
    config = sweep(*(str(16 * number) for number in range(1, 9)), measure={
        "warmup": 0, "iterations": 500, "mode": "barrier_start"})
    (folder / "long.json").write_text(json.dumps(config))
    told = slurm.run("sbatch", "--parsable", "slurm/smoke.sbatch", "long.json", cwd=folder,
                     env=environment(mpirun, folder, HPCBENCH_LAUNCHER=through))
    number = told.stdout.strip()
    _wait_for(lambda: "[1/8]" in ended(0, folder).output, folder)
    slurm.run("scancel", *scancel, number)
    _wait_for(lambda: "JobState=RUNNING" not in _job(slurm, number)
              and "JobState=COMPLETING" not in _job(slurm, number), folder)
    code = _job(slurm, number).partition("ExitCode=")[2].partition(":")[0]
    return ended(int(code), folder)


def _job(slurm: SlurmCluster, number: str) -> str:
    return slurm.run("scontrol", "show", "job", number).stdout


def _wait_for(condition: object, folder: Path, timeout: float = 120) -> None:
    assert callable(condition)
    deadline = time.monotonic() + timeout
    while not condition():
        assert time.monotonic() < deadline, ended(-1, folder).output
        time.sleep(0.1)

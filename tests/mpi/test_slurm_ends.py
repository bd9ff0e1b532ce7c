"""Jobs that a real Slurm ends before they are done: at the time limit, and when a node fails."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from launcher import EVERY_MPI_IF_ALL, MpiLauncher
from mpi.on_slurm import (
    BATCHES,
    Batch,
    Ended,
    assert_measured_by_every_rank,
    checkout,
    ended,
    environment,
    require_slurm,
)
from mpi.reading import sweep
from slurm_cluster import Nodes, SlurmCluster

pytestmark = [pytest.mark.mpi, pytest.mark.soak, pytest.mark.timeout(600)]
CPU = next(batch for batch in BATCHES if batch.file == "cpu.sbatch")
SMOKE = next(batch for batch in BATCHES if batch.file == "smoke.sbatch")
CASE_S = 6.0


@pytest.fixture
def slurm(tmp_path: Path) -> Iterator[SlurmCluster]:
    """A cluster of two nodes."""
    require_slurm()
    with SlurmCluster(tmp_path / "cluster", [Nodes("cpu", 2)]) as cluster:
        yield cluster


def submitted(
    slurm: SlurmCluster, mpirun: MpiLauncher, batch: Batch, cases: int, *options: str,
) -> tuple[str, Path]:
    """Submit a sweep whose cases take `CASE_S` each and hardly any CPU time."""
    folder = checkout(mpirun.folder / "job", batch)
    config = sweep(*(str(16 * number) for number in range(1, cases + 1)),
                   fault=[{"rank": 1, "kind": "slow", "iteration": 0, "seconds": CASE_S}])
    (folder / "long.json").write_text(json.dumps(config))
    job = slurm.submit(*options, f"slurm/{batch.file}", "long.json", cwd=folder,
                       env=environment(mpirun, folder))
    return job, folder


def facts_of_job(slurm: SlurmCluster, job: str) -> dict[str, str]:
    """Return what Slurm says of a job, by name."""
    text = slurm.run("scontrol", "show", "job", job).stdout
    return dict(word.split("=", 1) for word in text.split() if "=" in word)


def acknowledged(done: Ended) -> list[str]:
    """Return the cases that were said to be done, in order, over all starts of the job."""
    return re.findall(r"ok +(all_reduce.*?)  ", done.output)


def assert_whole(done: Ended, cases: int) -> None:
    """Every case was measured by every rank, and none of them twice."""
    runs = acknowledged(done)
    assert len(runs) == len(set(runs)) == cases, done.output
    outcome = done.outcome()
    assert_measured_by_every_rank(outcome)
    assert len(outcome.results.cases) == cases and "HB150" in outcome.codes()


def test_the_signal_before_the_time_limit_and_the_job_goes_on(
    slurm: SlurmCluster, mpirun: MpiLauncher,
) -> None:
    """Slurm may send it up to 60 s early: between 30 and 90 s of two minutes."""
    job, folder = submitted(slurm, mpirun, CPU, 18, "--time=2", "--signal=B:USR1@30")
    done = ended(slurm.exit_code(job, timeout=420), folder).check()
    assert int(facts_of_job(slurm, job)["Restarts"]) >= 1
    assert_whole(done, 18)


def test_the_time_limit_itself_seals_what_there_is(
    slurm: SlurmCluster, mpirun: MpiLauncher,
) -> None:
    job, folder = submitted(slurm, mpirun, SMOKE, 30, "--time=1")
    done = ended(slurm.exit_code(job, timeout=300), folder)
    assert facts_of_job(slurm, job)["JobState"] == "TIMEOUT"
    outcome = done.outcome()
    status = outcome.status()
    assert len(done.headers()) == 4 and "HB110" not in outcome.codes()
    assert list(status.values()).count("ok") == len(acknowledged(done)) >= 3, done.output
    assert set(status.values()) == {"ok", "not_run"}


@EVERY_MPI_IF_ALL
def test_a_node_that_fails_costs_the_running_case_only(
    slurm: SlurmCluster, mpirun: MpiLauncher,
) -> None:
    """It falls silent, as one without power; Slurm takes it down and starts the job again."""
    job, folder = submitted(slurm, mpirun, CPU, 4)
    deadline = time.monotonic() + 120
    while "[2/4]" not in ended(-1, folder).output:
        assert time.monotonic() < deadline, ended(-1, folder).output
        time.sleep(0.1)
    slurm.freeze("cpu-2")
    slurm.take_down("cpu-2")
    while facts_of_job(slurm, job)["JobState"] != "PENDING":
        assert time.monotonic() < deadline, facts_of_job(slurm, job)
        time.sleep(0.1)
    assert len(acknowledged(ended(-1, folder))) == 2
    slurm.restart("cpu-2")
    done = ended(slurm.exit_code(job), folder).check()
    assert facts_of_job(slurm, job)["Restarts"] == "1"
    assert_whole(done, 4)
    assert [header.environment["scheduler"]["SLURMD_NODENAME"] for header in done.headers()] == [
        "cpu-1", "cpu-1", "cpu-2", "cpu-2"]

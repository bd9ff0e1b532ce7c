"""The launcher itself: exit codes, time limits and orphans under a real mpirun."""

from __future__ import annotations

import sys

import pytest

from launcher import EVERY_MPI, MpiLauncher, TimeoutExpired

pytestmark = pytest.mark.mpi

RANK = """
from mpi4py import MPI
print(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n", end="", flush=True)
"""


def python(mpirun: MpiLauncher, code: str) -> list[str]:
    return [mpirun.program("python"), "-c", code]


@EVERY_MPI
def test_runs_as_one_job(mpirun: MpiLauncher) -> None:
    job = mpirun.run(4, command=python(mpirun, RANK)).check()
    assert sorted(job.stdout.split("\n")[:-1]) == [f"rank {rank} of 4" for rank in range(4)]
    mpirun.assert_no_orphans()


@EVERY_MPI
def test_version_under_mpirun(mpirun: MpiLauncher) -> None:
    job = mpirun.run(2, command=[mpirun.program("python"), "-m", "hpcbench", "--version"]).check()
    assert job.stdout.count("hpcbench ") == 2


@EVERY_MPI
def test_time_limit_kills_everything(mpirun: MpiLauncher) -> None:
    code = f"{RANK}\nimport time; time.sleep(60)"
    with pytest.raises(TimeoutExpired, match="over 3 s"):
        mpirun.run(2, command=python(mpirun, code), timeout=3)
    mpirun.assert_no_orphans(within=0.5)


def test_finds_an_orphan_without_token(mpirun: MpiLauncher) -> None:
    sleeper = [sys.executable, "-c", "import time; time.sleep(60)"]
    code = f"""
import subprocess
child = subprocess.Popen({sleeper}, env={{}}, start_new_session=True,
                         stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
print("started", child.pid, flush=True)
"""
    with mpirun.start(1, command=python(mpirun, code)) as job:
        job.wait_for("started")
        job.wait(20)
        with pytest.raises(AssertionError, match="still alive"):
            mpirun.assert_no_orphans(within=0.2)
    mpirun.assert_no_orphans(within=0.5)

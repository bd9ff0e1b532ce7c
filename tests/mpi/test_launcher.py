"""The launcher itself: exit codes, time limits and orphans under a real mpirun."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import pytest

from launcher import EVERY_MPI, Finished, MpiLauncher, TimeoutExpired

pytestmark = pytest.mark.mpi

RANK = """
from mpi4py import MPI
print(f"rank {MPI.COMM_WORLD.rank} of {MPI.COMM_WORLD.size}\\n", end="", flush=True)
"""


def python(mpirun: MpiLauncher, code: str) -> list[str]:
    return [mpirun.program("python"), "-c", code]


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


@pytest.mark.parametrize("mpirun", ["openmpi"], indirect=True)
def test_a_killed_mpirun_leaves_nothing_that_a_later_one_could_meet(mpirun: MpiLauncher) -> None:
    """Process ids come again: /tmp/ompi.PID of a killed mpirun ended another with code 213."""
    with mpirun.start(2, command=python(mpirun, f"{RANK}\nimport time; time.sleep(60)")) as job:
        job.wait_for("rank")
        session = f"ompi.{job.pid}"
    assert (job.home / session).is_dir()
    assert not Path(tempfile.gettempdir(), session).exists()


def test_an_exit_code_that_mpich_lost_counts_only_with_its_evidence() -> None:
    banner = "=   EXIT CODE: 9\n"
    aborted = "application called MPI_Abort(comm=0x84000001, 2) - process 1\n"
    job = Finished((), 9, banner, aborted, 0.0, None)
    assert job.check(2) is job
    for other in (Finished((), 9, banner, "", 0.0, None), Finished((), 9, "", aborted, 0.0, None),
                  Finished((), 1, banner, aborted, 0.0, None)):
        with pytest.raises(pytest.fail.Exception):
            other.check(2)
    with pytest.raises(pytest.fail.Exception):
        job.check(3)

"""``hpcbench validate`` under a real mpirun: one verdict, one exit code, and always an end."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from hpcbench import __version__
from launcher import EVERY_MPI_IF_ALL, Finished, MpiLauncher
from mpi.reading import sweep

pytestmark = pytest.mark.mpi

OTHER_RANK = """
import os, signal, sys, time
from mpi4py import MPI
import hpcbench
if MPI.COMM_WORLD.rank == 1:
    {what}
from hpcbench.__main__ import main
sys.argv[0] = "hpcbench"
main()
"""
LATE = """
import os, sys, time
if os.environ["PMI_RANK"] == "1":
    time.sleep(60)
from hpcbench.__main__ import main
main()
"""


def validate(mpirun: MpiLauncher, *words: str) -> tuple[str, ...]:
    return (mpirun.program("python"), "-m", "hpcbench", "validate", *words)


def other_rank(mpirun: MpiLauncher, what: str, *words: str) -> tuple[str, ...]:
    code = OTHER_RANK.format(what=what)
    return (mpirun.program("python"), "-c", code, "validate", *words)


def lines(job: Finished) -> dict[str, dict[str, Any]]:
    """Return the lines of a job by subject; of several the last."""
    return {line["subject"]: line for line in json.loads(job.stdout)["lines"]}


@EVERY_MPI_IF_ALL
def test_ranks_give_one_verdict(mpirun: MpiLauncher) -> None:
    words = ("config.json", "--json", "-o", "new/out", "--timeout", "100")
    job = mpirun.run(2, config=sweep("8", block={"backend": ["gloo", "nccl"]}),
                     command=validate(mpirun, *words), timeout=110).check(0)
    told = json.loads(job.stdout)
    assert (told["ranks"], told["nodes"], told["counts"]["fail"]) == (2, 1, 0)
    found = lines(job)
    assert found["ranks"] == {"subject": "ranks", "state": "ok", "found": "2, as started",
                              "fix": ""}
    for name in ("torch", "MPI", "versions", "launcher", "interface", "clock offset",
                 "results folder", "shared folder"):
        assert found[name]["state"] == "ok", found[name]
    sweeps = [line for line in told["lines"] if line["subject"] == "sweep"]
    assert [line["state"] for line in sweeps] == ["ok", "warn"]
    assert not (mpirun.jobs[0].home / "new").exists()
    mpirun.assert_no_orphans()


def test_a_rank_with_other_versions_and_cores_is_named(mpirun: MpiLauncher) -> None:
    what = 'hpcbench.__version__ = "0.0.9"; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})'
    job = mpirun.run(2, command=other_rank(mpirun, what, "--json", "--timeout", "100"),
                     timeout=110).check(1)
    found = lines(job)
    assert found["versions"]["state"] == "fail"
    assert f"hpcbench {__version__} on rank 0, 0.0.9 on rank 1" in found["versions"]["found"]
    if len(os.sched_getaffinity(0)) > 1:
        assert found["cores"]["state"] == found["binding"]["state"] == "warn"
        assert "1 core on rank 1" in found["cores"]["found"]


def test_a_stopped_rank_is_named_in_time(mpirun: MpiLauncher) -> None:
    """It still reaches the communicator, so the others are past everything that MPI waits in."""
    what = "MPI.COMM_WORLD.Dup(); os.kill(os.getpid(), signal.SIGSTOP)"
    job = mpirun.run(2, command=other_rank(mpirun, what, "--timeout", "4"), timeout=60)
    assert job.returncode != 0
    assert "no answer within 4 s from rank 1" in job.stdout, str(job)


@pytest.mark.soak
def test_mpi_that_does_not_start_is_ended_and_reported(mpirun: MpiLauncher) -> None:
    command = (mpirun.program("python"), "-c", LATE, "validate", "--timeout", "3")
    job = mpirun.run(2, command=command, timeout=40)
    assert job.returncode != 0 and "MPI did not start within 3 s" in job.stdout
    assert "Traceback" not in job.stderr and "most recent call" not in job.stderr

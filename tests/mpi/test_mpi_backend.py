"""Backend mpi: a hang or an error in it ends the job with a verdict, on both MPIs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcbench.reduce.reduce import reduce_folder
from launcher import MpiLauncher
from mpi.reading import sweep

pytestmark = pytest.mark.mpi

ON_WATCHDOGS = Path(__file__).with_name("on_watchdogs.py")


def _with_fault(kind: str, rank: int) -> dict[str, Any]:
    fault = {"case": "* mpi * 16B *", "rank": rank, "kind": kind, "iteration": 2, "seconds": 60}
    return sweep("8", "16", "32", block={"backend": ["gloo", "mpi"]}, launch={"timeout_s": 4},
                 measure={"order": "planned"}, fault=[fault])


@pytest.mark.parametrize(("mpirun", "kind", "blamed", "status", "words"), [
    ("mpich", "stop", 1, "timeout",
     "rank 1: process was stopped, gone or cut off, no answer in 4 s"),
    ("openmpi", "slow", None, "timeout", "phase run of iteration 2"),
    ("mpich", "raise", 1, "failed", "rank 1: InjectedFault"),
], indirect=["mpirun"], ids=["mpich-stop-1", "openmpi-slow-None", "mpich-raise-1"])
def test_a_hang_ends_the_job_with_its_verdict_on_disk(
    mpirun: MpiLauncher, kind: str, blamed: int | None, status: str, words: str,
) -> None:
    """Each kind of fault with one MPI; that the other aborts as it should, another kind shows."""
    job = mpirun.run(2, config=_with_fault(kind, 1), timeout=60)
    if (kind, job.returncode) != ("stop", 9):  # MPICH may report the stopped rank that it killed
        job.check(3)
    mpirun.assert_no_orphans()
    told = "it ran in the MPI process (backend mpi), so the job ends here"
    assert job.stderr.count(told) == 1
    assert job.folder is not None
    cases = {(item.case.backend, item.case.workload.size_bytes): item
             for item in reduce_folder(job.folder).cases}
    hung = cases.pop(("mpi", 16))
    assert hung.status == status and words in hung.reason, hung
    assert hung.blamed_rank == blamed
    assert cases.pop(("mpi", 32)).status == "not_run"
    assert {item.status for item in cases.values()} == {"ok"}


@pytest.mark.parametrize(
    "mpirun", ["mpich", pytest.param("openmpi", marks=pytest.mark.soak)], indirect=True)
def test_the_watchdogs_name_every_rank_that_does_not_answer(mpirun: MpiLauncher) -> None:
    command = [mpirun.program("python"), str(ON_WATCHDOGS)]
    assert mpirun.run(4, command=command).check().stdout.count("right") == 4

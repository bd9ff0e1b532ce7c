"""Launches in which ranks never enter MPI, or are not of one command: an end in time, with one
code, and the line that says who is missing."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import psutil
import pytest

from launcher import EVERY_MPI, EVERY_MPI_IF_ALL, Finished, MpiLauncher
from mpi.reading import sweep

pytestmark = pytest.mark.mpi

LIMIT = ("--set", "launch.init_timeout_s=4")
KILLED = (signal.SIGKILL, signal.SIGTERM)
"""MPICH's own code where a rank ends at once: once in 50 times that of whom it kills then."""


def _of_two(mpirun: MpiLauncher, first: tuple[str, ...], second: tuple[str, ...]) -> Finished:
    """Run a job of two programs, one rank each; no folder of results may be there."""
    job = mpirun.run(1, config=sweep("8"), command=[*first, ":", "-np", "1", *second], timeout=60)
    assert job.folder is None and job.returncode != 0, str(job)
    assert "Traceback" not in job.stderr, str(job)
    mpirun.assert_no_orphans()
    return job


def _noted(folder: Path, words: tuple[str, ...]) -> tuple[str, ...]:
    """Return the command of a rank beside which its parent's pid and its own code are noted."""
    script = f'echo $$ >{folder}/pid; "$@"; c=$?; echo $c >{folder}/code; exit $c'
    return ("sh", "-c", script, "-", *words)


def _lines(job: Finished) -> list[str]:
    return [line for line in job.stderr.splitlines() if line.startswith("hpcbench:")]


def _run(mpirun: MpiLauncher, *words: str) -> tuple[str, ...]:
    return (mpirun.program("python"), "-m", "hpcbench", "run", "config.json", "-o", "out", *words)


@EVERY_MPI
def test_a_rank_that_is_refused_is_quoted_and_ends_the_job(mpirun: MpiLauncher) -> None:
    job = _of_two(mpirun, _run(mpirun), _run(mpirun, "--wrong")).check(2)
    (line,) = _lines(job)
    assert line.startswith("hpcbench: rank 1 was refused: ") and "--wrong" in line
    assert job.duration_s < 30  # not the limit of a start


@EVERY_MPI_IF_ALL
def test_a_refused_rank_0_ends_the_others(mpirun: MpiLauncher) -> None:
    job = _of_two(mpirun, _run(mpirun, "--wrong"), _run(mpirun)).check(2)
    assert job.stderr.count("--wrong") == 1 and job.duration_s < 30


@EVERY_MPI_IF_ALL
def test_what_all_ranks_are_refused_for_is_printed_once(mpirun: MpiLauncher) -> None:
    job = mpirun.run(3, command=_run(mpirun, "--wrong"), timeout=60).check(2)
    assert job.stderr.count("--wrong") == 1


@EVERY_MPI_IF_ALL
def test_ranks_of_different_commands_are_refused_with_both(mpirun: MpiLauncher) -> None:
    job = _of_two(mpirun, _run(mpirun, "--iters", "3"), _run(mpirun, "--iters", "4")).check(2)
    (line,) = _lines(job)
    assert "--iters 3" in line and "--iters 4" in line


@EVERY_MPI
@pytest.mark.parametrize(("other", "found"), [
    (("true",), "rank 1 has ended"), (("sleep", "50"), "rank 1 runs sleep 50")])
def test_a_rank_that_never_comes_is_named_after_the_limit(
    mpirun: MpiLauncher, other: tuple[str, ...], found: str, tmp_path: Path,
) -> None:
    job = _of_two(mpirun, _noted(tmp_path, _run(mpirun, *LIMIT)), other)
    (line,) = _lines(job)
    assert found in line and "launch.init_timeout_s" in line
    assert 4 < job.duration_s < 40
    if other == ("true",):
        job.check(2)
    elif mpirun.mpi == "mpich":  # Open MPI's code is that of whom it killed
        assert job.returncode in {2, *KILLED}
        assert int((tmp_path / "code").read_text()) == 2


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_a_rank_that_waits_in_mpi_init(
    mpirun: MpiLauncher, number: signal.Signals, tmp_path: Path,
) -> None:
    first = _noted(tmp_path, _run(mpirun))
    with mpirun.start(1, config=sweep("8"),
                      command=[*first, ":", "-np", "1", "sleep", "50"]) as job:
        job.wait_for("starting 2 ranks")
        (rank,) = psutil.Process(int((tmp_path / "pid").read_text())).children()
        deadline = time.monotonic() + 60
        # MPICH ends a job by the end of a rank that it knows, and such a rank has memory to share
        while not any("mpich_shm" in entry.path for entry in rank.memory_maps()):
            assert time.monotonic() < deadline, job.describe()
            time.sleep(0.1)
        os.kill(rank.pid, number)
        assert job.wait(20).returncode in {3, *KILLED}, job.stderr()
        assert int((tmp_path / "code").read_text()) == 3
        assert f"ended by {number.name}" in job.stderr()
        mpirun.assert_no_orphans()


@EVERY_MPI_IF_ALL
def test_variables_that_torchrun_left_in_the_shell_do_not_hide_mpirun(mpirun: MpiLauncher) -> None:
    left = {"TORCHELASTIC_RUN_ID": "x", "RANK": "0", "WORLD_SIZE": "4",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29655"}
    job = mpirun.run(2, config=sweep("8"), env=left, timeout=60).check(0)
    assert "starting 2 ranks of" in job.stdout

"""Signals and sudden ends of a whole job: nothing acknowledged is lost, nothing is orphaned."""

from __future__ import annotations

import contextlib
import itertools
import os
import signal
import time
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from hpcbench.cli import app
from hpcbench.trace.journal import journal_path
from launcher import (
    EVERY_MPI,
    EVERY_MPI_IF_ALL,
    INTEL_MPI,
    OUTER_LAUNCH,
    MpiLauncher,
    Running,
)
from mpi.reading import Outcome, read, sweep

pytestmark = pytest.mark.mpi

LONG = {"measure": {"warmup": 0, "iterations": 1500, "mode": "barrier_start"}}
"""Agreed starts would be as late as a busy machine makes them: 1500 can take half a minute."""


SLOW = {"rank": 0, "kind": "slow", "iteration": 0, "seconds": 20, "case": "* 16B *"}
"""What a signal comes into, on any machine."""


@EVERY_MPI
def test_sigkill_of_mpirun_leaves_no_orphans(mpirun: MpiLauncher) -> None:
    with mpirun.start(2, config=sweep("8", "1MiB", **LONG)) as job:
        job.wait_for("results in")
        deadline = time.monotonic() + 60
        while len(processes := job.processes()) < 7:  # mpirun, supervisors, templates, workers
            assert time.monotonic() < deadline, job.describe()
            time.sleep(0.02)
        _assert_nothing_of_the_launcher_in(processes)
        os.kill(job.pid, signal.SIGKILL)
        mpirun.assert_no_orphans(within=10)


def _wait_for_a_case(job: Running, timeout: float = 60) -> None:
    """Wait until rank 0 has noted that a case began."""
    deadline = time.monotonic() + timeout
    while not (job.folder and journal_path(job.folder / "traces", 0).exists()
               and b'"begin"' in journal_path(job.folder / "traces", 0).read_bytes()):
        assert job.popen.poll() is None and time.monotonic() < deadline, job.finished()
        time.sleep(0.02)


def _assert_nothing_of_the_launcher_in(processes: list[psutil.Process]) -> None:
    """A worker with the variables of mpirun would take itself for a rank, and end the job."""
    templates = [process for process in processes if "hpcbench.template" in process.cmdline()]
    assert templates
    for process in templates:
        leaked = [name for name in process.environ()
                  if name.startswith((*OUTER_LAUNCH, "FI_PROVIDER_PATH"))]
        assert not leaked, leaked


@EVERY_MPI_IF_ALL
def test_sigkill_of_one_supervisor_ends_the_job_and_keeps_what_was_done(
    mpirun: MpiLauncher,
) -> None:
    config = sweep("8", "16", "1MiB", block={"iterations": 20}, **LONG)
    with mpirun.start(2, config=config) as job:
        job.wait_for("[2/3]")
        _supervisors(job)[1].kill()
        assert job.wait(60).returncode not in (0, 1, 2)
        mpirun.assert_no_orphans()
    outcome = _reduced(job.folder)
    assert outcome.of_size(8).status == outcome.of_size(16).status == "ok"
    assert outcome.of_size(2**20).status in ("not_run", "ok")
    assert "HB110" in outcome.codes()


def _reduced(folder: Path | None) -> Outcome:
    """Reduce what a job left that had no time to report, and return the results."""
    done = CliRunner().invoke(app, ["reduce", str(folder)])
    assert done.exit_code == 3, done.output
    return read(folder)


@EVERY_MPI_IF_ALL
def test_mpi_abort_of_a_rank_keeps_what_was_done(mpirun: MpiLauncher) -> None:
    command = [mpirun.program("python"), str(Path(__file__).with_name("on_abort.py")), "run",
               "config.json", "-o", "out"]
    config = sweep("8", "16", fault=[SLOW])
    done = mpirun.run(2, config=config, command=command).check(42)
    mpirun.assert_no_orphans()
    outcome = _reduced(done.folder)
    assert (outcome.of_size(8).status, outcome.of_size(16).status) == ("ok", "not_run")


@INTEL_MPI
def test_the_end_of_a_mpirun_that_is_a_script_ends_the_ranks(mpirun: MpiLauncher) -> None:
    """Intel MPI's passes no signal on. Its own variables reach no worker, and are no finding."""
    config = sweep("8", "16", fault=[SLOW])
    with mpirun.start(2, config=config) as job:
        job.wait_for("[1/2]")
        assert "2 ranks of Intel MPI's mpirun" in job.stdout()
        _assert_nothing_of_the_launcher_in(job.processes())
        os.kill(job.pid, signal.SIGTERM)
        assert job.wait(20).returncode == -signal.SIGTERM
        mpirun.assert_no_orphans(within=60)
    outcome = read(job.folder)
    assert (outcome.of_size(8).status, outcome.of_size(16).status) == ("ok", "not_run")
    assert outcome.results.run.versions["mpi"].startswith("Intel MPI 20")
    assert not {"HB110", "HB142"} & set(outcome.codes())


def _supervisors(job: Running) -> list[psutil.Process]:
    found = []
    for process in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker ends at any time
            if process.cmdline()[1:4] == ["-m", "hpcbench", "run"]:
                found.append(process)
    return found


def test_a_stop_signal_seals_and_reports_what_there_is(mpirun: MpiLauncher) -> None:
    """That several ranks agree on it, scancel shows (test_slurm.py); SIGINT: test_suite.py."""
    config = sweep("8", "16", "4MiB", fault=[SLOW])
    with mpirun.start(1, config=config) as job:
        job.wait_for("[1/3]")
        os.kill(job.pid, signal.SIGTERM)
        done = job.wait(60).check(3)
        mpirun.assert_no_orphans()
    outcome = read(done.folder)
    assert outcome.of_size(8).status == "ok"
    assert outcome.of_size(2**22).status == "not_run"
    assert "HB110" not in outcome.codes()  # it was stopped in good order, it did not crash


def test_usr1_finishes_the_running_case(mpirun: MpiLauncher) -> None:
    config = sweep("8", "16", "32", "64", fault=[{**SLOW, "seconds": 3}])
    with mpirun.start(1, config=config) as job:
        job.wait_for("[1/4]")
        os.kill(job.pid, signal.SIGUSR1)
        done = job.wait(60).check(3)
    outcome = read(done.folder)
    statuses = [outcome.of_size(size).status for size in (8, 16, 32, 64)]
    assert statuses == ["ok", "ok", "not_run", "not_run"]


def test_a_signal_while_sealing_and_reporting_changes_nothing(mpirun: MpiLauncher) -> None:
    """The ranks get the signals: MPICH's mpirun ends with 255 if one comes as its proxy leaves."""
    config = sweep("8", "16", output={"plots": True})
    with mpirun.start(2, config=config) as job:
        job.wait_for("[2/2]")
        ranks = _supervisors(job)
        assert len(ranks) >= 2
        for number in itertools.cycle([signal.SIGUSR1, signal.SIGTERM]):
            if job.popen.poll() is not None:
                break
            for rank in ranks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.send_signal(number)
            time.sleep(0.05)
        done = job.wait(10).check()
    assert (done.folder / "summary.json").exists()


def test_supervisors_end_with_their_launcher_in_the_middle_of_a_case(
    mpirun: MpiLauncher,
) -> None:
    config = sweep("8", fault=[{"rank": 0, "kind": "slow", "iteration": 0, "seconds": 40}])
    with mpirun.start(1, config=config) as job:
        job.wait_for("results in")
        _wait_for_a_case(job)
        launchers = [process for process in job.processes()
                     if process.name() in ("mpirun", "mpiexec.hydra", "hydra_pmi_proxy")]
        for process in launchers:
            process.kill()
        mpirun.assert_no_orphans(within=10)

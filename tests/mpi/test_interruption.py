"""Signals and sudden ends of a whole job: nothing acknowledged is lost, nothing is orphaned."""

from __future__ import annotations

import contextlib
import os
import random
import re
import signal
import subprocess
import time

import psutil
import pytest

from launcher import EVERY_MPI, MpiLauncher, Running
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi

LONG = {"measure": {"warmup": 0, "iterations": 1500, "mode": "barrier_start"}}
"""Agreed starts would be as late as a busy machine makes them: 1500 can take half a minute."""


@EVERY_MPI
def test_sigkill_of_mpirun_leaves_no_orphans(mpirun: MpiLauncher) -> None:
    with mpirun.start(4, config=sweep("8", "1MiB", **LONG)) as job:
        job.wait_for("results in")
        time.sleep(0.5)
        assert len(job.processes()) >= 12  # mpirun, supervisors, templates, workers
        os.kill(job.pid, signal.SIGKILL)
        mpirun.assert_no_orphans(within=10)


def test_sigkill_of_one_supervisor_ends_the_job_and_keeps_what_was_done(
    mpirun: MpiLauncher,
) -> None:
    config = sweep("8", "16", "1MiB", block={"iterations": 20}, **LONG)
    with mpirun.start(2, config=config) as job:
        job.wait_for("[2/3]")
        _supervisors(job)[1].kill()
        job.wait(30)
        mpirun.assert_no_orphans()
    reduced = mpirun.run(1, command=[mpirun.program("hpcbench"), "reduce", str(job.folder)])
    outcome = read(reduced.check(3) and job.folder)
    assert outcome.of_size(8).status == outcome.of_size(16).status == "ok"
    assert outcome.of_size(2**20).status in ("not_run", "ok")
    assert "HB110" in outcome.codes()


def _supervisors(job: Running) -> list[psutil.Process]:
    found = []
    for process in job.processes():
        with contextlib.suppress(psutil.NoSuchProcess):  # a worker ends at any time
            if process.cmdline()[1:4] == ["-m", "hpcbench", "run"]:
                found.append(process)
    return found


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_stop_signal_seals_and_reports_what_there_is(
    mpirun: MpiLauncher, number: signal.Signals,
) -> None:
    config = sweep("8", "16", "4MiB", **LONG)
    config["benchmarks"][0]["iterations"] = 400
    with mpirun.start(2, config=config) as job:
        job.wait_for("[1/3]")
        os.kill(job.pid, number)
        done = job.wait(30).check(3)
        mpirun.assert_no_orphans()
    outcome = read(done.folder)
    assert outcome.of_size(8).status == "ok"
    assert outcome.of_size(2**22).status == "not_run"
    assert "HB110" not in outcome.codes()  # it was stopped in good order, it did not crash


def test_usr1_finishes_the_running_case(mpirun: MpiLauncher) -> None:
    config = sweep("8", "16", "32", "64", **LONG)
    with mpirun.start(2, config=config) as job:
        job.wait_for("[1/4]")
        os.kill(job.pid, signal.SIGUSR1)
        done = job.wait(30).check(3)
    statuses = [read(done.folder).of_size(size).status for size in (8, 16, 32, 64)]
    assert statuses[0] == "ok"
    assert statuses[-1] == "not_run"
    assert "failed" not in statuses


@pytest.mark.parametrize("kills", [
    4, pytest.param(30, marks=[pytest.mark.soak, pytest.mark.timeout(600)])])
def test_sigkill_of_everything_loses_no_acknowledged_case(
    mpirun: MpiLauncher, kills: int,
) -> None:
    chance = random.Random(kills)
    for _ in range(kills):
        sizes = [str(16 * (number + 1)) for number in range(200)]
        with mpirun.start(2, config=sweep(*sizes)) as job:
            job.wait_for("[  1/200]")
            time.sleep(chance.uniform(0, 1.0))
            job.kill()
        acknowledged = [int(size) for size in re.findall(r"ok +all_reduce .* (\d+)B", job.stdout())]
        assert acknowledged
        reduced = subprocess.run(
            [mpirun.program("hpcbench"), "reduce", str(job.folder)], capture_output=True,
            text=True, timeout=60, env=mpirun.environment(job.home, {}), check=False)
        assert reduced.returncode in (0, 3), reduced.stderr
        outcome = read(job.folder)
        lost = [size for size in acknowledged if outcome.of_size(size).status != "ok"]
        assert not lost, f"acknowledged, then lost: {lost}\n{reduced.stdout}"


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_while_sealing_and_reporting_changes_nothing(
    mpirun: MpiLauncher, number: signal.Signals,
) -> None:
    """The ranks get the signals: MPICH's mpirun ends with 255 if one comes as its proxy leaves."""
    config = sweep("8", "16", output={"plots": True})
    with mpirun.start(2, config=config) as job:
        job.wait_for("[2/2]")
        ranks = _supervisors(job)
        assert len(ranks) >= 2
        while job.popen.poll() is None:
            for rank in ranks:
                with contextlib.suppress(psutil.NoSuchProcess):
                    rank.send_signal(number)
            time.sleep(0.05)
        done = job.wait(10).check()
    assert done.folder is not None
    assert (done.folder / "summary.json").exists()


def test_supervisors_end_with_their_launcher_in_the_middle_of_a_case(
    mpirun: MpiLauncher,
) -> None:
    config = sweep("8", fault=[{"rank": 0, "kind": "slow", "seconds": 40}])
    with mpirun.start(2, config=config) as job:
        job.wait_for("results in")
        time.sleep(0.5)
        launchers = [process for process in job.processes()
                     if process.name() in ("mpirun", "mpiexec.hydra", "hydra_pmi_proxy")]
        for process in launchers:
            process.kill()
        mpirun.assert_no_orphans(within=10)

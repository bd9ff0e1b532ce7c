"""Jobs that were stopped or killed, and go on, those of earlier code, too."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from golden import GOLDEN, KINDS, unpacked
from launcher import Finished, MpiLauncher, Running
from mpi.reading import NOT_DRAWN, Outcome, read, sweep

pytestmark = pytest.mark.mpi

LONG = {"measure": {"warmup": 0, "iterations": 40, "mode": "barrier_start", "passes": 2}}
SIZES = ("8", "16", "32", "64", "128")


def resume(mpirun: MpiLauncher, folder: Path, *args: str, ranks: int = 2) -> Finished:
    words = [mpirun.program("python"), "-m", "hpcbench", "run", *args, "--resume", str(folder)]
    return mpirun.run(ranks, command=words)


def begun(text: str) -> Counter[str]:
    """Count in what a job printed how often each case was run."""
    return Counter(re.findall(r"ok +(all_reduce.*?)  ", text))


def whole(outcome: Outcome) -> bool:
    return all(item.status == "ok" and item.statistics is not None
               and item.timing is not None and len(item.timing.stop_reasons) == 2
               for item in outcome.results.cases)


def stopped(
    mpirun: MpiLauncher, folder: Path, number: signal.Signals, after: str, ranks: int = 2,
) -> Finished:
    """Run a job in ``folder`` and send it a signal when it has printed ``after``.

    If it is to stop in good order, its next case lasts until the signal has come.
    """
    config = folder.parent / f"{folder.name}.json"
    slow = {"case": "* 64B *", "rank": ranks - 1, "kind": "slow", "iteration": 0,
            "seconds": 1.5}
    config.write_text(json.dumps(sweep(
        *SIZES, **LONG, fault=[] if number == signal.SIGKILL else [slow])))
    words = [mpirun.program("python"), "-m", "hpcbench", "run", "-v", str(config), "--resume",
             str(folder)]
    with mpirun.start(ranks, command=words) as job:
        job.wait_for(after)
        if number == signal.SIGKILL:
            job.kill()
        else:
            os.kill(job.pid, number)
        return job.wait(60)


def test_sigkill_and_again_makes_one_whole_run(mpirun: MpiLauncher, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    runs = begun(stopped(mpirun, folder, signal.SIGKILL, "[ 2/10]").stdout)
    runs += begun(resume(mpirun, folder, "-v").check().stdout)
    # a killed mpirun prints no line that it has not read yet: fewer than 10 may be there
    assert len(runs) == 5 and max(runs.values()) == 2
    assert whole(read(folder))
    assert not list(folder.rglob("*.journal"))


def killer(folder: Path) -> dict[str, Any]:
    """A sweep whose second case outlives the patience of whoever started the job."""
    return sweep("8", "16", "32", name=folder.name, fault=[
        {"rank": 0, "kind": "slow", "iteration": 0, "seconds": 60, "case": "* 16B *"}])


def test_a_case_that_the_job_dies_in_twice_is_quarantined(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """What several ranks have noted, tests/unit/test_checks_attempts.py joins."""
    folder = tmp_path / "run"
    config = tmp_path / "killer.json"
    config.write_text(json.dumps(killer(folder)))
    words = [mpirun.program("python"), "-m", "hpcbench", "run", str(config), "--resume",
             str(folder)]
    for number in range(2):
        with mpirun.start(1, command=words) as job:
            job.wait_for("[1/3]" if number == 0 else "attempt 2 of this run")
            _wait_for_second_case(job, folder, number)
            job.kill()
    done = resume(mpirun, folder, ranks=1).check(1)
    outcome = read(folder)
    assert [outcome.of_size(size).status for size in (8, 16, 32)] == ["ok", "failed", "ok"]
    assert "quarantined" in done.prose


def _wait_for_second_case(job: Running, folder: Path, attempt: int) -> None:
    """Wait until rank 0 has noted that the case began: its journal is longer than at the start."""
    traces = folder / "traces" / (f"attempt{attempt}" if attempt else "")
    journal = traces / "rank00000.journal"
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        if journal.exists() and journal.read_bytes().count(b'"begin"') >= 2 - attempt:
            return
        assert job.popen.poll() is None, job.finished()
        time.sleep(0.05)
    raise AssertionError(str(job.finished()))


IN_TURN = """
import json, sys
from hpcbench.__main__ import main
for words in json.loads(sys.argv[1]):
    sys.argv = ["hpcbench", "run", *words]
    try:
        main()
    except SystemExit as ended:
        print(f"ended with {ended.code}", file=sys.stderr, flush=True)
"""
"""Runs one command after the other, so that what all of them import is imported once."""


def refusals(mpirun: MpiLauncher, *every: tuple[str, ...]) -> list[str]:
    """Return what commands of one rank printed, all of which end with 2."""
    command = [mpirun.program("python"), "-c", IN_TURN, json.dumps(every)]
    *printed, last = mpirun.run(1, command=command).check().stderr.split("ended with 2\n")
    assert len(printed) == len(every) and not last.strip(), printed
    return printed


def test_what_cannot_be_gone_on_with_is_refused(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """Of a job of one rank; a job of two that wants to go on with it is refused by one line."""
    folder = tmp_path / "job-17"
    stopped(mpirun, folder, signal.SIGUSR1, "[ 3/10]", ranks=1).check(3)
    config = str(tmp_path / "job-17.json")
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    of_one = {
        "the plan was": (config, "--iters", "5", "--resume", str(folder)),
        "they cannot be one run": (config, "--passes", "1", "--resume", str(folder)),
        "no results folder": ("--resume", str(tmp_path)),
        "no flag can change it": ("--iters", "5", "--resume", str(folder)),
    }
    printed = dict(zip(of_one, refusals(mpirun, *of_one.values()), strict=True))
    printed["this job has 2: start as many"] = resume(mpirun, folder).check(2).stderr
    for words, text in printed.items():
        assert words in text and "Traceback" not in text
    assert before == {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    forced = resume(mpirun, folder, config, "--iters", "5", "--force", ranks=1)
    outcome = read(folder)
    assert {"HB150", "HB151"} <= outcome.codes(), forced
    assert (folder / "plan-before-attempt1.json").is_file()


def test_without_a_folder_the_newest_run_goes_on(mpirun: MpiLauncher, tmp_path: Path) -> None:
    words = [mpirun.program("python"), "-m", "hpcbench", "run", str(tmp_path / "c.json"),
             "--resume"]
    config = sweep("8", output={**NOT_DRAWN, "folder": str(tmp_path / "out")})
    (tmp_path / "c.json").write_text(json.dumps(config))
    first = mpirun.run(1, command=words).check()
    assert len(list((tmp_path / "out").iterdir())) == 2 and "[1/1]" in first.stdout
    assert "nothing is left to run" in mpirun.run(1, command=words).check().stdout


DONE_BEFORE = {"collective": 7, "primitive": 10, "training": 6, "mixed": 4}
"""Kind -> runs of cases that the stopped job had acknowledged."""
ENDED = {"collective": "stopped by SIGUSR1", "primitive": "stopped by SIGTERM",
         "training": "stopped by SIGUSR1", "mixed": "ended from outside"}
PROGRESS = re.compile(r"^\[ *\d+/\d+\] (\w+) +(.* pass \d/\d)", re.MULTILINE)


@pytest.mark.parametrize("kind", [
    pytest.param(kind, marks=pytest.mark.soak) if kind == "training" else kind for kind in KINDS])
def test_a_run_of_earlier_code_goes_on(kind: str, mpirun: MpiLauncher, tmp_path: Path) -> None:
    """With --force: torch and MPI may be others than the stopped job's.

    Trainings are in the mixed run, too, and SIGUSR1 stopped the one of collectives. The mixed one
    goes on with its sweep file: were that another plan now, --force would be noted (HB151).
    """
    folder = unpacked(kind, tmp_path)
    plan = json.loads((folder / "plan.json").read_text(encoding="utf-8"))
    given = [str(GOLDEN / "configs" / f"stopped-{kind}.json")] if kind == "mixed" else []
    words = (mpirun.program("python"), "-m", "hpcbench", "run", *given, "--resume", str(folder))
    job = mpirun.run(2, "-v", "--force", command=words, timeout=60).check()

    assert f"attempt 1 was {ENDED[kind]}" in job.prose
    assert f"{DONE_BEFORE[kind]} measurements are kept" in job.prose
    rows = list(csv.DictReader((folder / "summary.csv").read_text("utf-8").splitlines()))
    assert [row["case_id"] for row in rows] == [case["case_id"] for case in plan["cases"]]
    assert {row["status"] for row in rows} - {"skipped"} == {"ok"}
    every = plan["passes"] * sum(row["status"] == "ok" for row in rows)
    begun = Counter(PROGRESS.findall(job.stdout))
    assert len(begun) == begun.total() == every - DONE_BEFORE[kind]
    assert {status for status, _ in begun} == {"ok"}
    assert "the plan was" not in (folder / "summary.json").read_text("utf-8")
    mpirun.assert_no_orphans()

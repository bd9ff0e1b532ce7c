"""Several sweep files as one job: one folder, one suite.json, whatever becomes of a member."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from launcher import MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi
SLOW = {"rank": 0, "kind": "slow", "iteration": 0, "seconds": 30, "case": "* 16B *"}
COUNTED = ("ok", "wrong", "skipped", "failed", "timeout", "not_run")


def files(folder: Path, **members: Mapping[str, Any]) -> list[str]:
    """Write a sweep file for each member and return their paths, which are those of arguments."""
    paths = [folder / f"{name}.json" for name in members]
    for path, config in zip(paths, members.values(), strict=True):
        path.write_text(json.dumps(config))
    return list(map(str, paths))


def suite_words(mpirun: MpiLauncher, *words: str) -> list[str]:
    return [mpirun.program("python"), "-m", "hpcbench", "suite", *words]


def document(path: Path) -> dict[str, Any]:
    """Read a suite.json; the counts of each member that has some add up."""
    found = dict(json.loads(path.read_text()))
    for member in found["members"]:
        if counts := member["counts"]:
            assert counts["planned"] == sum(counts[name] for name in COUNTED)
    return found


def test_a_member_that_fails_or_cannot_run_does_not_stop_the_others(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """The last member of the same name is measured; the summary is in all three places."""
    raising = {"rank": 1, "kind": "raise", "case": "* 16B *"}
    paths = files(tmp_path, here=sweep("8", "16", fault=[raising]),
                  gpu=sweep("8", block={"backend": "nccl"}), last=sweep("8"))
    output = tmp_path / "results.json"
    done = mpirun.run(2, command=suite_words(
        mpirun, *paths[:2], "-c", paths[2], "-o", "out", "--output", str(output), "--json"))
    done.check(1)
    found = document(output)
    assert json.loads(done.stdout) == document(done.folder / "suite.json") == found
    failed, missing, last = found["members"]
    assert [one["status"] for one in found["members"]] == ["bad findings", "cannot run here", "ok"]
    assert [one["exit_code"] for one in found["members"]] == [1, 1, 0] and found["exit_code"] == 1
    assert (failed["counts"]["ok"], failed["counts"]["failed"]) == (1, 1)
    assert len(missing["reasons"]) == 1
    assert last["summary"]["totals"] == last["counts"] and last["summary"]["cases"][0]["n"] == 3
    assert "3 of 3: " in done.stderr and len({one["folder"] for one in found["members"]}) == 3
    assert read(done.folder / last["folder"]).of_size(8).status == "ok"
    mpirun.assert_no_orphans()


def test_an_interrupt_ends_the_suite(mpirun: MpiLauncher, tmp_path: Path) -> None:
    paths = files(tmp_path, a=sweep("8"), b=sweep("8", "16", fault=[SLOW]), c=sweep("8"))
    with mpirun.start(2, command=suite_words(mpirun, *paths, "-o", "out")) as job:
        job.wait_for("[1/2] ok")
        os.kill(job.pid, signal.SIGINT)
        done = job.wait(60).check(3)
    assert "not started: the suite was stopped before" in done.prose
    found = document(done.folder / "suite.json")
    assert [one["status"] for one in found["members"]] == ["ok", "incomplete", "not started"]
    assert found["stopped_by"] == "SIGINT" and found["exit_code"] == 3
    assert [one["counts"]["not_run"] for one in found["members"]] == [0, 1, 1]


def test_a_killed_suite_records_what_was_done_and_goes_on(
    mpirun: MpiLauncher, tmp_path: Path,
) -> None:
    """The files may be gone by then: the suite has kept them as they were checked.

    One rank does: that all of several ends with mpirun, test_interruption.py shows.
    """
    paths = files(tmp_path, a=sweep("8"), b=sweep("16", fault=[{**SLOW, "seconds": 2}]),
                  c=sweep("16"))
    with mpirun.start(1, command=suite_words(mpirun, *paths, "-o", "out")) as job:
        job.wait_for("/02-test")
        os.kill(job.pid, signal.SIGKILL)
        mpirun.assert_no_orphans(within=10)
    folder = job.folder
    before = document(folder / "suite.json")
    assert [one["status"] for one in before["members"]] == ["ok", "running", "not started"]
    assert before["exit_code"] is None
    for path in paths:
        Path(path).unlink()
    done = mpirun.run(1, command=suite_words(mpirun, "--resume", str(folder), "-q")).check()
    after = document(folder / "suite.json")
    assert [one["status"] for one in after["members"]] == ["ok"] * 3 and after["exit_code"] == 0
    assert after["members"][0] == before["members"][0]
    assert done.stdout.splitlines() == [str(folder)]
    assert {item.status for item in read(folder / "02-test").results.cases} == {"ok"}

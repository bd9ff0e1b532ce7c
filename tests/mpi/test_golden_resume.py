"""Runs that earlier code was stopped in go on with today's: nothing is repeated, nothing fails."""

from __future__ import annotations

import csv
import json
import re
from collections import Counter
from pathlib import Path

import pytest

from golden import GOLDEN, KINDS, unpacked
from launcher import MpiLauncher

pytestmark = pytest.mark.mpi

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

"""hpcbench.measure in programs of users: mpi4py, torch, exceptions, pytest, torchrun."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import ROOT, MpiLauncher, launcher_for
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi
PROGRAM = str(Path(__file__).with_name("on_measure.py"))
TASKS = ("measure", "errors", "several clocks")
OF_TWO = pytest.mark.parametrize(
    "reports", [("mpi", 2), ("gloo", 2)], indirect=True, ids=lambda of: f"{of[0]}-{of[1]}",
    scope="module")


@dataclass(frozen=True)
class Reports:
    """What each rank of a program reported of every task, by rank; and where it ran."""

    library: str
    ranks: int
    mpirun: MpiLauncher
    found: dict[str, list[dict[str, Any]]] = field(default_factory=dict)

    def of(self, task: str) -> list[dict[str, Any]]:
        """Return the reports of a task. One program does all of gloo's: torch is slow to start."""
        if task not in self.found:
            self._run(TASKS if self.library == "gloo" else (task,))
        return self.found[task]

    def _run(self, tasks: Sequence[str]) -> None:
        words = (self.mpirun.program("python"), PROGRAM, self.library, *tasks)
        job = self.mpirun.run(self.ranks, command=words).check()
        found = json.loads(job.stdout)
        assert len(found) == self.ranks, job
        self.found.update({task: [one[task] for one in found] for task in tasks})


@pytest.fixture(scope="module")
def reports(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory,
) -> Reports:
    """Give the reports of a library and a number of ranks to all tests that ask for them."""
    library, ranks = request.param
    return Reports(library, ranks, launcher_for("mpich", tmp_path_factory.mktemp("jobs")))


@OF_TWO
def test_all_ranks_get_one_result(reports: Reports) -> None:
    first, *others = reports.of("measure")
    (kept,) = (job.home / "kept" for job in reports.mpirun.jobs if (job.home / "kept").exists())
    (item,) = read(kept).results.cases
    assert item.statistics is not None and item.case.world_size == reports.ranks
    assert item.statistics.median_s == pytest.approx(first["kept"]["median"])
    for other in others:
        assert other["first"] == first["first"] and other["again"] == first["again"]
    of_seconds, of_count = first["first"], first["again"]
    assert len(of_seconds["per_rank"]) == reports.ranks == of_seconds["shape"][0]
    assert of_seconds["median"] == pytest.approx(np.median(of_seconds["times"]))
    low, high = of_seconds["interval"] or 2 * [of_seconds["median"]]  # none where it is doubted
    assert low <= of_seconds["median"] <= high
    assert set(of_seconds["wrong"]) == {"rank 0: the check found 3 wrong elements"}
    assert of_count["shape"] == [reports.ranks, 8] and not of_count["wrong"]
    for found in (of_seconds, of_count):  # from the first start to the last end
        assert all(time_s >= longest_s for time_s, longest_s in zip(
            found["times"], found["longest"], strict=True))
        assert 0 <= found["skew"] <= found["median"]


@OF_TWO
def test_an_exception_on_one_rank_is_raised_on_all(reports: Reports) -> None:
    for rank, report in enumerate(reports.of("errors")):
        for where in ("first call", "a later call", "check"):
            found = report[where]
            assert (found["error"], found["rank"]) == ("MeasureError", 1)
            assert "ValueError: no batch left (on_measure.py:" in found["text"]
            assert found["cause"] == ("ValueError" if rank == 1 else "NoneType")
        assert report["several"]["rank"] == 0 and "left on 0" in report["several"]["text"]
        assert report["counts"]["error"] == "ValueError"
        assert "iterations" in report["counts"]["text"]
        assert report["one argument"]["error"] == ("MeasureError" if rank else "TypeError")
        assert report["still"] == {"error": None}


@OF_TWO
def test_several_clocks_are_compared(reports: Reports) -> None:
    first, other = reports.of("several clocks")
    assert first["first"] == other["first"]
    assert first["save"]["error"] == other["save"]["error"] == "ValueError"
    assert 0.002 <= first["first"]["median"] < 0.2
    if "clock_unreliable" not in first["first"]["flags"]:  # 5 % of 2 ms; else the clocks are as bad
        assert first["first"]["skew"] < 0.01


@pytest.mark.parametrize("reports", [("gloo", 2)], indirect=True, ids=["gloo-2"], scope="module")
def test_it_agrees_with_run(mpirun: MpiLauncher, reports: Reports) -> None:
    """The same all_reduce of 256 KiB, at its shortest: how loaded the machine is may change."""
    job = mpirun.run(2, config=sweep("256KiB", measure={"iterations": 30})).check()
    assert job.folder is not None
    (item,) = [item for item in read(job.folder).results.cases if item.case.world_size == 2]
    first = reports.of("measure")[0]["first"]
    assert 1 / 4 < min(first["times"]) / item.statistics.min_s < 4


def pytest_words() -> list[str]:
    """Return what has pytest load the plug-in, if this environment was made before it was there."""
    plugin = "hpcbench.api.pytest_plugin"
    known = any(entry.value == plugin for entry in entry_points(group="pytest11"))
    return [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider",
            *([] if known else ["-p", plugin])]


TESTS = """
def test_step(hpcbench_measure):
    found = hpcbench_measure(lambda: sum(range(1000)), iterations=10)
    assert found.name == "test_step" and found.ranks == RANKS
    assert found.median < 1 and found.samples.shape == (RANKS, 10)
"""


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_fixture(mpirun: MpiLauncher, tmp_path: Path, ranks: int) -> None:
    (tmp_path / "test_own.py").write_text(TESTS.replace("RANKS", str(ranks)))
    job = mpirun.run(ranks if ranks > 1 else 0, str(tmp_path / "test_own.py"),
                     command=pytest_words()).check()
    assert job.stdout.count("1 passed") == ranks
    assert "test_step: " in job.stdout and "10 samples" in job.stdout


EXAMPLE = str(ROOT / "examples/measure_in_a_program.py")


@pytest.mark.parametrize("ranks", [0, 2])
def test_the_example(mpirun: MpiLauncher, ranks: int) -> None:
    job = mpirun.run(ranks, command=(mpirun.program("python"), EXAMPLE)).check()
    line, by_rank = job.stdout.splitlines()
    assert line.startswith("my all_reduce: ") and "WRONG" not in line
    assert by_rank.count(" us") == max(ranks, 1)

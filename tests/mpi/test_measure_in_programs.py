"""hpcbench.measure in programs of users: mpi4py, torch, exceptions, pytest, torchrun."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from launcher import ROOT, MpiLauncher
from mpi.reading import read, sweep

pytestmark = pytest.mark.mpi
PROGRAM = str(Path(__file__).with_name("on_measure.py"))
SIZES = pytest.mark.parametrize(("library", "ranks"), [
    ("mpi", 2), ("mpi", 4), ("gloo", 2), pytest.param("gloo", 4, marks=pytest.mark.soak)])
"""Beyond two ranks the code is the same whatever carries the values."""


def reports(mpirun: MpiLauncher, ranks: int, *words: str) -> list[dict[str, Any]]:
    """Run the program; return what each rank reported, by rank."""
    job = mpirun.run(ranks, *words, command=(mpirun.program("python"), PROGRAM)).check()
    found = [json.loads(line) for line in job.stdout.replace("}{", "}\n{").splitlines() if line]
    assert len(found) == ranks, job
    return sorted(found, key=lambda item: int(item["rank"]))


@SIZES
def test_all_ranks_get_one_result(mpirun: MpiLauncher, library: str, ranks: int) -> None:
    first, *others = reports(mpirun, ranks, library, "measure")
    (item,) = read(mpirun.jobs[-1].home / "kept").results.cases
    assert item.statistics is not None and item.case.world_size == ranks
    assert item.statistics.median_s == pytest.approx(first["kept"]["median"])
    for other in others:
        assert other["first"] == first["first"] and other["again"] == first["again"]
    of_seconds, of_count = first["first"], first["again"]
    assert len(of_seconds["per_rank"]) == ranks == of_seconds["shape"][0]
    assert of_seconds["median"] == pytest.approx(np.median(of_seconds["times"]))
    low, high = of_seconds["interval"]
    assert low <= of_seconds["median"] <= high
    assert set(of_seconds["wrong"]) == {"rank 0: the check found 3 wrong elements"}
    assert of_count["shape"] == [ranks, 8] and not of_count["wrong"]
    for found in (of_seconds, of_count):  # from the first start to the last end
        assert all(time_s >= longest_s for time_s, longest_s in zip(
            found["times"], found["longest"], strict=True))
        assert 0 <= found["skew"] <= found["median"]


@SIZES
def test_an_exception_on_one_rank_is_raised_on_all(
    mpirun: MpiLauncher, library: str, ranks: int,
) -> None:
    for report in reports(mpirun, ranks, library, "errors"):
        own = report["rank"] == 1
        for where in ("first call", "a later call", "check"):
            found = report[where]
            assert (found["error"], found["rank"]) == ("MeasureError", 1)
            assert "ValueError: no batch left (on_measure.py:" in found["text"]
            assert found["cause"] == ("ValueError" if own else "NoneType")
        assert report["several"]["rank"] == 0 and "left on 0" in report["several"]["text"]
        assert report["counts"]["error"] == "ValueError"
        assert "iterations" in report["counts"]["text"]
        assert report["one argument"]["error"] == (
            "MeasureError" if report["rank"] else "TypeError")
        assert report["still"] == {"error": None}


HANGS = """
import sys, torch, torch.distributed as dist, hpcbench
from hpcbench.api import ranks
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
ranks.IMPATIENT_S = 1.0
calls, tensor = [], torch.ones(1000)
def step():
    calls.append(1)
    if rank == 1 and len(calls) == 3:
        raise ValueError("no batch left")
    dist.all_reduce(tensor)
try:
    hpcbench.measure(step)
except hpcbench.MeasureError as error:
    print(error.rank, type(error.__cause__).__name__)
"""


def test_a_rank_that_waits_in_the_function_raises_when_the_other_ends(tmp_path: Path) -> None:
    """Rank 0 is in the all_reduce: no rank can call it back. The process of rank 1 ends, gloo sees
    it, and memory of the node says why; without such memory rank 0 knows its own error only."""
    both = [subprocess.Popen([sys.executable, "-c", HANGS, str(rank), str(tmp_path / "store")],
                             stdout=subprocess.PIPE, text=True) for rank in range(2)]
    said = [rank.communicate(timeout=60)[0].split() for rank in both]
    assert said[1] == ["1", "ValueError"]
    assert said[0] in (["1", "RuntimeError"], ["0", "RuntimeError"])


@pytest.mark.parametrize("library", ["mpi", "gloo"])
def test_several_clocks_are_compared(mpirun: MpiLauncher, library: str) -> None:
    first, other = reports(mpirun, 2, library, "several clocks")
    assert first["first"] == other["first"]
    assert first["save"]["error"] == other["save"]["error"] == "ValueError"
    assert 0.002 <= first["first"]["median"] < 0.02
    if "clock_unreliable" not in first["first"]["flags"]:  # 5 % of 2 ms; else the clocks are as bad
        assert first["first"]["skew"] < 0.01


def test_it_agrees_with_run(mpirun: MpiLauncher) -> None:
    """The same all_reduce of 256 KiB; how loaded the machine is may change in between."""
    job = mpirun.run(2, config=sweep("256KiB", measure={"iterations": 30})).check()
    assert job.folder is not None
    (item,) = [item for item in read(job.folder).results.cases if item.case.world_size == 2]
    assert item.statistics is not None
    (first, _) = reports(mpirun, 2, "gloo", "measure")
    assert 1 / 4 < first["first"]["median"] / item.statistics.median_s < 4


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


def test_under_torchrun(mpirun: MpiLauncher, tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text("import torch, torch.distributed as dist, hpcbench\n"
                       "dist.init_process_group('gloo')\nx = torch.ones(1000)\n"
                       "found = hpcbench.measure(lambda: dist.all_reduce(x), iterations=20)\n"
                       "print(found.samples.shape, flush=True)\ndist.destroy_process_group()\n")
    done = subprocess.run(
        [mpirun.program("torchrun"), "--nproc-per-node=2", str(program)], cwd=tmp_path,
        env=mpirun.environment(tmp_path, {}), capture_output=True, text=True, timeout=90,
        check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("(2, 20)") == 2

"""A training strategy of somebody else's goes from plan to summary without an edit of ours."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from reading import ONCE, read

from hpcbench.kinds.training.plan.workload import training_of
from launcher import ROOT, MpiLauncher

SOURCE = ROOT / "tests/data/strategy_plugin"
SWEEP = {
    "measure": {**ONCE, "warmup": 1, "iterations": 3}, "launch": {"timeout_s": 30},
    "benchmarks": [{
        "kind": "training", "model": "transformer-tiny", "layers": 2, "hidden": 64, "vocab": 96,
        "seq_length": 16, "communication": ["on", "off", "only"],
        "strategies": {"flat": {"parts": [1, 3]}, "data": {}, "brittle": {"bits": 4}}}]}
REASON = ("strategy brittle cannot be used: broken 0.1: ModuleNotFoundError: "
          "No module named 'no_such_module'")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the built package, and with one that is broken."""
    folder = tmp_path_factory.mktemp("plugins")
    shutil.copytree(SOURCE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    target = folder / "target"
    pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index",
           "--no-build-isolation", "--disable-pip-version-check", "--target", str(target)]
    done = subprocess.run([*pip, str(folder / "source")], text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    facts = target / "broken-0.1.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (facts / "entry_points.txt").write_text(
        "[hpcbench.strategies]\nbrittle = no_such_module:SPEC\n")
    return target


def hpcbench(*words: str, path: Path | None = None) -> str:
    folders = [str(folder) for folder in (path, ROOT) if folder]
    done = subprocess.run(
        [sys.executable, "-m", "hpcbench", *words], text=True, capture_output=True, timeout=60,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(folders)})
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_is_listed_and_a_broken_one_is_reported(installed: Path) -> None:
    told = hpcbench("list", "--no-probe", path=installed)
    assert "  flat                every rank has the whole model, gradients are averaged" in told
    assert "  plug-in flat        hpcbench-flat 1.0: offers a strategy" in told
    assert "  plug-in brittle     broken 0.1: cannot be used: ModuleNotFoundError" in told


@pytest.mark.mpi
def test_it_goes_from_plan_to_summary(mpirun: MpiLauncher, installed: Path) -> None:
    environment = {"PYTHONPATH": f"{installed}{os.pathsep}{ROOT}"}
    job = mpirun.run(2, config=SWEEP, env=environment).check(0)
    planned = hpcbench("plan", job.command[-3], "--world-size", "2", path=installed)
    assert " flat " in planned and REASON in planned
    found = {(training_of(item.case).strategy, training_of(item.case).communication,
              dict(training_of(item.case).options).get("parts")): (item.status, item.reason)
             for item in read(job.folder).results.cases}
    assert found == {
        **{("flat", communication, parts): ("ok", "")
           for communication in ("on", "off", "only") for parts in (1, 3)},
        **{("data", communication, None): ("ok", "") for communication in ("on", "off", "only")},
        **{("brittle", communication, None): ("skipped", REASON)
           for communication in ("on", "off", "only")}}
    summary = json.loads((job.folder / "summary.json").read_text())
    rows = summary["results"]["training"]["flat"]
    assert [row["options"] for row in rows] == [["parts=1"], ["parts=3"]]
    assert all(row["parity"].endswith("%") and row["exposed_s"] is not None for row in rows)
    results = str(job.folder / "results.h5")
    shown = hpcbench("show", results, path=installed)
    assert any(line.split()[:2] == ["flat", "parts=3"] for line in shown.splitlines())
    hpcbench("plot", results, "--output-dir", str(job.folder / "drawn"), path=installed)
    assert list((job.folder / "drawn").iterdir())
    assert "flat" in hpcbench("show", results)  # where the plug-in is not installed

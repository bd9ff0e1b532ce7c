"""A kind of case of somebody else's package: planned, run, reduced, shown, drawn and summarised."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from reading import ONCE, read

import golden
from launcher import ROOT, MpiLauncher
from packages import hpcbench, install, offer, path_with

SWEEP = {
    "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": {"report": False},
    "launch": {"timeout_s": 30}, "benchmarks": [
        {"kind": "sleep", "name": "naps", "milliseconds": [5, 20]},
        {"kind": "collective", "collective": "all_reduce", "size": "1KiB"},
        {"kind": "drowsy", "depth": 3},
    ]}


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the built package, and with one that is broken."""
    target = install(ROOT / "tests/data/kind_plugin", tmp_path_factory.mktemp("kind"))
    offer(target, "broken", "hpcbench.kinds", {"drowsy": "no_such_module:SPEC"})
    return target


@pytest.mark.mpi
def test_a_kind_goes_all_the_way_without_an_edit(
    mpirun: MpiLauncher, installed: Path, tmp_path: Path,
) -> None:
    job = mpirun.run(2, config=SWEEP, env=path_with(installed)).check(0)
    results = read(job.folder).results
    told = sorted((item.case.kind, item.status, item.reason) for item in results.cases)
    assert told == [
        ("collective", "ok", ""),
        ("drowsy", "skipped", "kind drowsy cannot be used: "
         "broken 0.1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("sleep", "ok", ""), ("sleep", "ok", "")]
    shown = hpcbench(installed, "show", str(job.folder))
    assert "overslept" in shown and "naps" in shown
    _is_summarised(job.folder)
    assert [path.name for path in (job.folder / "plots").glob("*sleep*")]
    _is_read_where_it_is_not_installed(job.folder, tmp_path / "elsewhere")


def _is_summarised(folder: Path) -> None:
    summary = json.loads((folder / "summary.json").read_text("utf-8"))
    rows = {row["milliseconds"]: row for row in summary["cases"] if row["kind"] == "sleep"}
    assert set(rows) == {5, 20}
    for milliseconds, row in rows.items():
        assert row["n_wrong"] == 0
        assert row["overslept_s"] == pytest.approx(row["median_s"] - milliseconds / 1e3)
        assert row["overslept_s"] >= 0
    assert len(summary["results"]["sleep"]) == 2
    header = (folder / "summary.csv").read_text("utf-8").splitlines()[0].split(",")
    assert "overslept_s" in header


def _is_read_where_it_is_not_installed(folder: Path, elsewhere: Path) -> None:
    """Without the package its rows have name, status and times, and a line says what is missing."""
    shutil.copytree(folder, elsewhere / "run")
    told = golden.hpcbench("show", str(elsewhere / "run"))
    assert "sleep milliseconds=5" in told and "kind sleep is not installed here" in told
    assert "overslept" not in told and "all_reduce" in told
    shutil.rmtree(elsewhere / "run/plots")
    assert "exit code" not in golden.hpcbench("reduce", str(elsewhere / "run"))
    assert (elsewhere / "run/plots").is_dir(), "it draws what it can, too"
    cases = json.loads((elsewhere / "run" / "summary.json").read_text("utf-8"))["cases"]
    rows = [row for row in cases if row["kind"] == "sleep"]
    assert len(rows) == 2 and all(row["status"] == "ok" and row["median_s"] > 0 for row in rows)

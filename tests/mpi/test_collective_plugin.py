"""A collective of somebody else's package: planned, run, reduced, shown, drawn and summarised."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from reading import ONCE, read

from launcher import ROOT, MpiLauncher
from packages import hpcbench, install, offer, path_with

SIZES = ["1KiB", "64KiB"]
SWEEP = {
    "measure": {**ONCE, "warmup": 1, "iterations": 3}, "output": {"plots": True},
    "launch": {"timeout_s": 30}, "benchmarks": [
        {"kind": "collective", "collective": ["all_gather", "ring"], "size": SIZES},
        {"kind": "collective", "collective": ["broken", "unready"], "size": "1KiB"},
        {"kind": "collective", "collective": "ring_all_gather", "device": "cuda", "size": "1KiB"},
    ]}
UNREADY = """
from hpcbench.plugins import CollectiveSpec
SPEC = CollectiveSpec("unready", "unready:NoSuchClass", in_place=(False,), busbw=lambda ranks: 1.0)
THIEF = CollectiveSpec("allreduce", "unready:NoSuchClass", busbw=lambda ranks: 1.0)
"""


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder for PYTHONPATH with the built package, and with others that are broken."""
    target = install(ROOT / "tests/data/collective_plugin", tmp_path_factory.mktemp("collective"))
    (target / "unready.py").write_text(UNREADY)
    offer(target, "broken", "hpcbench.collectives", {
        "unready": "unready:SPEC", "thief": "unready:THIEF", "broken": "no_such_module:SPEC"})
    return target


@pytest.mark.mpi
def test_a_collective_needs_one_row_and_one_class(
    mpirun: MpiLauncher, installed: Path, tmp_path: Path,
) -> None:
    assert "send_recv, barrier, ring_all_gather" in hpcbench(installed, "list", "--no-probe")
    job = mpirun.run(2, config=SWEEP, env=path_with(installed)).check(1)
    assert "7 cases" in hpcbench(installed, "plan", job.command[-3], "--world-size", "2")
    results = read(job.folder).results
    told = {(item.case.workload.name, item.case.device): (item.status, item.reason)
            for item in results.cases}
    failed = "unready:NoSuchClass of unready cannot be loaded"
    assert failed in told.pop(("unready", "cpu"))[1]
    assert told == {
        ("all_gather", "cpu"): ("ok", ""), ("ring_all_gather", "cpu"): ("ok", ""),
        ("broken", "cpu"): ("skipped", "collective broken cannot be used: "
                            "broken 0.1: ModuleNotFoundError: No module named 'no_such_module'"),
        ("ring_all_gather", "cuda"): (
            "skipped", "gloo has no send_recv on cuda, which ring_all_gather calls")}
    assert {item.n_wrong for item in results.cases if item.status == "ok"} == {0}
    assert job.folder is not None
    _is_reported(job.folder)
    _is_read_where_it_is_not_installed(job.folder, tmp_path / "elsewhere")


def _is_reported(folder: Path) -> None:
    told = json.loads((folder / "summary.json").read_text("utf-8"))["results"]["communication"]
    ours, theirs = told["allgather"], told["ring_all_gather"]
    assert [row["size_bytes"] for row in theirs] == [row["size_bytes"] for row in ours]
    for row in theirs:
        assert row["busbw_gb_per_s"] == pytest.approx(row["algbw_gb_per_s"] / 2)
    assert [path.name for path in (folder / "plots").glob("*ring_all_gather*")]


def _is_read_where_it_is_not_installed(folder: Path, elsewhere: Path) -> None:
    """Without the package the rows are there, and what is broken elsewhere is no more so here."""
    shutil.copytree(folder, elsewhere / "run")
    shown = hpcbench(elsewhere, "show", str(elsewhere / "run"))
    assert shown.count("ring_all_gather") >= len(SIZES)
    (row,) = [item.case.workload for item in read(elsewhere / "run").results.cases
              if item.case.workload.name == "ring_all_gather" and item.case.device == "cuda"]
    assert row.label(2).words == ["ring_all_gather", "fp32", "1024B", "n=2"]

"""A training strategy of somebody else's goes from plan to summary without an edit of ours."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from reading import ONCE, read

from hpcbench.kinds.training.plan.workload import training_of
from launcher import ROOT, MpiLauncher
from packages import hpcbench, install, offer, path_with

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
    target = install(ROOT / "tests/data/strategy_plugin", tmp_path_factory.mktemp("plugins"))
    offer(target, "broken", "hpcbench.strategies", {"brittle": "no_such_module:SPEC"})
    return target


def test_it_is_listed_and_a_broken_one_is_reported(installed: Path) -> None:
    told = hpcbench(installed, "list", "--no-probe")
    assert "  flat                every rank has the whole model, gradients are averaged" in told
    assert "  flat                hpcbench-flat 1.0: strategy flat" in told
    assert "  brittle             broken 0.1: cannot be used: ModuleNotFoundError" in told


@pytest.mark.mpi
def test_it_goes_from_plan_to_summary(
    mpirun: MpiLauncher, installed: Path, tmp_path: Path,
) -> None:
    job = mpirun.run(2, config=SWEEP, env=path_with(installed)).check(0)
    planned = hpcbench(installed, "plan", job.command[-3], "--world-size", "2")
    assert " flat " in planned and REASON in " ".join(planned.split())
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
    shown = hpcbench(installed, "show", results)
    assert any(line.split()[:2] == ["flat", "parts=3"] for line in shown.splitlines())
    hpcbench(installed, "plot", results, "--output-dir", str(job.folder / "drawn"))
    assert list((job.folder / "drawn").iterdir())
    assert "flat" in hpcbench(tmp_path, "show", results)  # where the plug-in is not installed

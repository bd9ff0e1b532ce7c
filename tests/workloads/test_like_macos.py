"""What needs no Linux, where Python lacks what macOS lacks: see tests/like_macos."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from launcher import ROOT

SWEEP: dict[str, Any] = {"name": "mac", "measure": {"passes": 1}, "benchmarks": [
    {"kind": "collective", "collective": "all_reduce", "size": "64KiB", "iterations": 4,
     "warmup": 1},
    {"kind": "training", "model": "transformer-tiny", "layers": 2, "strategies": "single",
     "device": ["cpu", "mps"], "iterations": 3, "warmup": 1, "batch_size": 2},
    {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
     "implementations": "compute_only", "iterations": 3, "warmup": 1}]}


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    path = tmp_path / "mac.json"
    path.write_text(json.dumps(SWEEP))
    return path


def hpcbench(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": f"{ROOT / 'tests' / 'like_macos'}{os.pathsep}{ROOT}", "MPLBACKEND": "agg"}
    return subprocess.run([sys.executable, "-m", "hpcbench", *words], cwd=folder, env=environ,
                          capture_output=True, text=True, timeout=120, check=False)


def test_a_sweep_is_planned_run_inline_shown_and_plotted(sweep: Path) -> None:
    folder = sweep.parent
    planned = hpcbench(folder, "plan", sweep.name, "--world-size", "1")
    assert (planned.returncode, planned.stderr) == (0, "")
    done = hpcbench(folder, "run", sweep.name, "--inline", "-o", "out")
    assert done.returncode == 0, done.stderr
    assert "planned 4 = 3 ok + 0 wrong + 1 skipped + 0 failed" in done.stdout
    assert "no mps device: torch" in done.stdout
    (run,) = (path.parent for path in (folder / "out").glob("mac-*/results.h5"))
    assert hpcbench(folder, "show", str(run)).returncode == 0
    plotted = hpcbench(folder, "plot", str(run))
    assert plotted.returncode == 0
    assert "all_reduce.png" in plotted.stdout


def test_workers_in_processes_of_their_own_are_refused_in_a_line(sweep: Path) -> None:
    refused = hpcbench(sweep.parent, "run", sweep.name, "-o", "out")
    assert refused.returncode == 2
    assert refused.stderr == (
        "hpcbench: workers in processes of their own need Linux (pidfd_open, memfd_create, prctl "
        "and /proc): this is darwin; use --inline (launch.inline), which isolates nothing\n")
    assert not (sweep.parent / "out").exists()

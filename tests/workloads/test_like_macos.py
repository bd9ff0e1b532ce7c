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

SWEEP: dict[str, Any] = {"name": "mac", "measure": {"passes": 1},
                         "output": {"plots": False, "report": False}, "benchmarks": [
    {"kind": "collective", "collective": "all_reduce", "size": "64KiB", "iterations": 4,
     "warmup": 1},
    {"kind": "training", "model": "transformer-tiny", "layers": 2, "strategies": "single",
     "device": ["cpu", "mps"], "iterations": 3, "warmup": 1, "batch_size": 2},
    {"kind": "primitive", "primitive": "tp_columnwise", "m": 64, "n": 64, "k": 64,
     "implementations": "compute_only", "iterations": 3, "warmup": 1}]}


COMMANDS = {
    "plan": ("plan", "mac.json", "--world-size", "1"), "refused": ("run", "mac.json", "-o", "out"),
    "run": ("run", "mac.json", "--inline", "-o", "new"), "show": ("show", "new/latest"),
    "plot": ("plot", "new/latest")}
ONE_AFTER_THE_OTHER = """
import json, os, sys
from hpcbench.__main__ import main
for name, words in json.loads(sys.argv[1]).items():
    sys.argv[1:] = words
    for number, kind in (1, "out"), (2, "err"):
        os.dup2(os.open(f"{name}.{kind}", os.O_WRONLY | os.O_CREAT), number)
    try:
        main()
    except SystemExit as ended:
        print(ended.code, file=open(f"{name}.code", "w"))
"""
"""In one process, for an import of torch takes longer than all of them."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder in which the commands ran; what each printed is in a file."""
    folder = tmp_path_factory.mktemp("mac")
    (folder / "mac.json").write_text(json.dumps(SWEEP))
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {
        "PYTHONPATH": f"{ROOT / 'tests' / 'like_macos'}{os.pathsep}{ROOT}", "MPLBACKEND": "agg"}
    done = subprocess.run([sys.executable, "-c", ONE_AFTER_THE_OTHER, json.dumps(COMMANDS)],
                          cwd=folder, env=environ, capture_output=True, text=True, timeout=120,
                          check=False)
    assert done.returncode == 0, done.stderr
    return folder


def ended(folder: Path, name: str) -> tuple[str, str, str]:
    """Return the exit code of a command, and what it printed on stdout and stderr."""
    code, out, err = ((folder / f"{name}.{kind}").read_text() for kind in ("code", "out", "err"))
    return code.strip(), out, err


def test_a_sweep_is_planned_run_inline_shown_and_plotted(folder: Path) -> None:
    code, _, stderr = ended(folder, "plan")
    assert (code, stderr) == ("0", "")
    code, stdout, stderr = ended(folder, "run")
    assert code == "0", stderr
    assert "3 of 4 cases measured" in stdout
    assert "no mps device" in stdout
    code, stdout, stderr = ended(folder, "show")
    assert code == "0" and "no mps device" in stdout, stderr
    code, stdout, stderr = ended(folder, "plot")
    assert code == "0" and "all_reduce.png" in stdout, stderr


def test_workers_in_processes_of_their_own_are_refused_in_a_line(folder: Path) -> None:
    code, _, stderr = ended(folder, "refused")
    assert (code, stderr) == ("2", (
        "hpcbench: workers in processes of their own need Linux (pidfd_open, memfd_create, prctl "
        "and /proc): this is darwin; use --inline (of profile: --set launch.inline=true), "
        "which isolates nothing\n"))
    assert not (folder / "out").exists()

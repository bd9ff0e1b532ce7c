"""The benchmark of the intervals' coverage runs, and its cells are those of its series."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "coverage.py"


@pytest.mark.parametrize("stopped", [[], ["--stopped"]])
def test_a_small_grid(tmp_path: Path, stopped: list[str]) -> None:
    told = tmp_path / "cells.json"
    output = subprocess.run(
        [sys.executable, BENCHMARK, "--cases", "5", "--counts", "21", "45", "--passes", "3",
         "--kinds", "ticks", "drift", "--json", told, *stopped],
        check=True, capture_output=True, text=True).stdout
    cells = json.loads(told.read_text())
    assert {cell["kind"] for cell in cells} == {"ticks", "drift"}
    assert len(output.splitlines()) == len(cells) + 2 and "a decision takes" in output
    assert all(0 <= cell["wrong"] + cell["flagged"] <= 1 for cell in cells)

"""The benchmark of naming slow ranks runs, with few reports."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "stragglers.py"


def test_it_prints_how_often_equal_ranks_are_named_and_slow_ones_found() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--reports", "3", "--rows", "1", "--ranks", "2", "3",
         "--steps", "15"], capture_output=True, text=True, timeout=60, check=True)
    assert "iid 0.0%  ar 0.0%  bimodal 0.0%  passes 0.0%  shared 0.0%" in done.stdout
    assert "iid +50%: " in done.stdout

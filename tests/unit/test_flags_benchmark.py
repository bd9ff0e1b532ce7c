"""The simulations of false alarms run, with few series."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "flags.py"


def test_it_prints_false_alarms_of_flags_and_modes() -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), "--series", "2"], capture_output=True,
                          text=True, timeout=100, check=True)
    assert "correlation 0.8  n= 400  10%:" in done.stdout
    assert "two modes 1 : 4" in done.stdout

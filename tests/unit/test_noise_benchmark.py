"""Answers name nothing in noise that depends, or has two modes: `benchmarks/noise.py` in small."""

from __future__ import annotations

import subprocess
import sys

from launcher import ROOT


def test_dependent_passes_and_calls_name_nothing() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks" / "noise.py"), "--reports", "12",
         "--kinds", "ar 0.6", "states 8", "--claims", "recommend 3 x 5", "blocks 1 x 9",
         "by 1 x 9", "ramp 9 x 100", "causes"],
        capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("\n") == 6

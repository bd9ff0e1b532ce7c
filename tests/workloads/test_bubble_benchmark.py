"""The benchmark that runs torch's schedules over stages that sleep."""

from __future__ import annotations

import re
import subprocess
import sys

from launcher import ROOT


def test_it_measures_about_what_is_predicted_or_more() -> None:
    """Sleeps are never too short, so that ranks wait at least as long as the schedule says."""
    told = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/bubble.py"), "--ranks", "2", "--microbatches", "4",
         "--unit-ms", "5", "--steps", "1", "--schedules", "DualPipeV"],
        capture_output=True, text=True, check=True, timeout=120).stdout
    rows = re.findall(r"(\w+) +predicted +([\d.]+) %, measured +([\d.]+) %", told)
    assert [name for name, *_ in rows] == ["DualPipeV"]
    assert all(float(predicted) <= float(found) + 0.01 < 100 for _, predicted, found in rows)

"""benchmarks/start.py runs both programs and tells their phases."""

from __future__ import annotations

import subprocess
import sys

from launcher import ROOT


def test_the_benchmark_of_the_start_prints_all_phases() -> None:
    done = subprocess.run(
        [sys.executable, str(ROOT / "benchmarks/start.py"), "--rounds", "1", "--iterations", "2",
         "--sizes", "8"], cwd=ROOT, text=True, capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "none" not in done.stdout
    assert done.stdout.splitlines()[-1].startswith("ratio ")

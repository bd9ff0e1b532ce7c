"""The benchmarks of plans, reports and the page run, of few cases."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize(("name", "words", "prints"), [
    ("plan_speed.py", "--cases 200 --repeat 1", ("192 collective cases", "200 training cases")),
    ("report_speed.py", "--cases 10 --ranks 9 --traced 2",
     ("10 cases x 9 ranks", "summary.json and summary.csv", "hpcbench show --json", "goals")),
    ("report_page.py", "--sizes 10x9 --traced 2 --no-browser",
     ("10 cases x 9 ranks", "MB, written")),
])
def test_it_prints_times_and_goals(name: str, words: str, prints: tuple[str, ...]) -> None:
    done = subprocess.run([sys.executable, str(FOLDER / name), *words.split()],
                          capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode in (0, 1) and "Traceback" not in done.stderr, done.stderr
    assert all(text in done.stdout for text in prints), done.stdout

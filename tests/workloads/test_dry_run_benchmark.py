"""The benchmark of dry runs ends, prints its table, and exits by its goals."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "dry_run.py"


def test_it_prints_what_a_case_took_and_why_one_is_skipped() -> None:
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--models", "gpt2", "--strategies", "fsdp", "tensor",
         "--ranks", "8", "--block", '{"layers": 1}'], text=True, capture_output=True, timeout=120)
    head, _, sharded, divided, _, why = done.stdout.splitlines()
    assert head.startswith("| model | strategy | 8 |"), done.stderr
    assert sharded.startswith("| gpt2 | fsdp |"), sharded
    assert sharded.endswith("| met |"), sharded
    assert "(1)" in divided
    assert why.startswith("1. skipped: 12 attention heads cannot be divided evenly")

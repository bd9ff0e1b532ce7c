"""The Triton kernel without a GPU: its arithmetic, and which gathered row goes where."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("on_triton_kernel.py")


def test_the_product_of_gathered_chunks_is_exact_in_the_interpreter() -> None:
    env = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(SCRIPT.parents[2])}
    done = subprocess.run([sys.executable, str(SCRIPT)], env=env, text=True, capture_output=True,
                          timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == [True] * 5

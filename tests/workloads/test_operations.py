"""What a job imports: only what the kinds of its cases need."""

from __future__ import annotations

import subprocess
import sys

import pytest

TRAININGS = "hpcbench.kinds.training.run.runner"
SLOW = "torch.distributed.tensor"
"""With what it imports it takes 1.2 s of CPU time on every rank, where torch takes 1.9 s."""


@pytest.mark.parametrize(("kinds", "imported"), [
    (["collective", "primitive"], False), (["training"], True)])
def test_kinds_that_no_case_has_are_not_imported(kinds: list[str], imported: bool) -> None:
    code = ("import sys, hpcbench.worker; from hpcbench.kinds.registry import kinds; "
            f"[kinds()[name].runner() for name in {kinds}]; "
            f"print({TRAININGS!r} in sys.modules, {SLOW!r} in sys.modules)")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True,
                          timeout=120, check=True)
    assert done.stdout.split() == [str(imported)] * 2

"""The benchmark of checks between samples compares a sample after a check with its neighbours."""

from __future__ import annotations

import runpy
from pathlib import Path

import numpy as np
import pytest

from hpcbench.trace.schema import Flag

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "checking.py"


def test_the_sample_after_a_check_is_compared_with_those_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(SCRIPT.parent))  # as Python does for a script
    times, flags = np.full(30, 10.0), np.zeros(30, dtype=np.int64)
    flags[:2] = Flag.WARMUP
    flags[[0, 2, 12, 29]] |= Flag.CHECKED
    times[[3, 13]] = 12.0
    ratios = runpy.run_path(str(SCRIPT))["after_checks"](times, flags)
    assert ratios.tolist() == [1.2]  # the others have too few neighbours

"""How the benchmarks of checks and of the shipped job judge their runs."""

from __future__ import annotations

import importlib.util
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.trace.schema import Flag

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "shipped_job.py"


@pytest.fixture
def judge(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The benchmark as a module, with its folder on the path, as Python has it for a script."""
    monkeypatch.syspath_prepend(str(SCRIPT.parent))
    spec = importlib.util.spec_from_file_location("shipped_job", SCRIPT)
    loaded = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = loaded
    spec.loader.exec_module(loaded)
    return loaded


def row(half: float = 0.04, **changes: Any) -> dict[str, Any]:
    return {"status": "ok", "backend": "gloo", "quality": [], "ci_reliable": True, "median_s": 1.0,
            "ci_low_s": 1 - half, "ci_high_s": 1 + half, **changes}


def test_rows_that_are_wide_flagged_or_unreliable_are_not_sound(judge: Any) -> None:
    both = {"quality": ["two_modes"], "half": 0.5}
    rows = [row(), row(0.06), row(ci_low_s=1.0, ci_high_s=1.09), row(quality=["trend"]),
            row(ci_reliable=False), row(**both), row(**both, backend="mpi"),
            row(ci_low_s=None, ci_high_s=None, ci_reliable=None),
            {"status": "skipped"}]
    run = judge.judged({"cases": rows, "findings": [{"code": "HB125"}]}, 80.0)
    assert (run.ok, run.sound, run.modes, run.noise) == (8, 1, 1, ())
    assert run.good_share == 2 / 8


def test_a_noisy_run_states_why_and_goals_are_those_of_the_median_run(judge: Any) -> None:
    run = judge.judged({"cases": [row()], "findings": [{"code": "HB144"}]}, 95.0)
    assert run.noise == ("HB144",)
    assert [met for _, met in judge.lines([run])] == [True, True, False]


CHECKING = Path(__file__).parents[2] / "benchmarks" / "checking.py"


def test_the_sample_after_a_check_is_compared_with_those_around_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.syspath_prepend(str(CHECKING.parent))  # as Python does for a script
    times, flags = np.full(30, 10.0), np.zeros(30, dtype=np.int64)
    flags[:2] = Flag.WARMUP
    flags[[0, 2, 12, 29]] |= Flag.CHECKED
    times[[3, 13]] = 12.0
    ratios = runpy.run_path(str(CHECKING))["after_checks"](times, flags)
    assert ratios.tolist() == [1.2]  # the others have too few neighbours

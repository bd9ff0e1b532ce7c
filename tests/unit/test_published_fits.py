"""Published runs are predicted to fit, trainings that cannot run to be too large, and throughputs
from those on fewer devices."""

from __future__ import annotations

import csv
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType
from typing import Any

import pytest

from hpcbench.kinds.training.plan.spec import AUTO
from launcher import ROOT


def loaded(name: str) -> ModuleType:
    spec = spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def benchmark() -> ModuleType:
    return loaded("published_fits")


@pytest.mark.parametrize("unit", ["GB", "GiB"])
def test_published_runs_are_predicted_to_fit(benchmark: Any, unit: str) -> None:
    assert len(benchmark.runs()) == 216
    found = list(benchmark.skipped(benchmark.UNITS[unit]))
    assert len(found) <= benchmark.MOST_SKIPPED, found


@pytest.mark.parametrize(("unit", "without"), [("GB", 37), ("GiB", 35)])
def test_with_the_defaults_each_skip_states_what_makes_the_run_fit(
    benchmark: Any, unit: str, without: int,
) -> None:
    found = list(benchmark.skipped(benchmark.UNITS[unit], AUTO, synced=False))
    assert len(found) == without, "docs/performance.md and docs/training.md say so"
    assert all(one.fitting for one in found), [one.words for one in found if not one.fitting]


def test_what_cannot_fit_is_a_skip(benchmark: Any) -> None:
    assert not list(benchmark.fitting())


def test_the_runs_are_what_they_are_stated_to_be(benchmark: Any) -> None:
    with benchmark.RUNS.open() as lines:
        rows = list(csv.DictReader(line for line in lines if not line.startswith("#")))
    assert {row["model"] for row in rows} >= {"125m", "1b", "7b", "30b", "70b"}
    assert {(row["device"], row["memory_gb"]) for row in rows} == {
        ("h100", "80"), ("a100", "80"), ("a100", "40")}
    assert {int(row["devices"]) for row in rows} == {8, 16, 32, 64, 128, 256, 512}


@pytest.mark.parametrize(("of", "at_least", "too_far"), [
    ("at most 64", 10, 0), ("all others", 40, 1)])
def test_throughputs_are_predicted_from_those_on_fewer_devices(
    of: str, at_least: int, too_far: int,
) -> None:
    """The one too far is a published run 18 % slower than those on half and twice the devices."""
    benchmark = loaded("published_predictions")
    points = [one for one in benchmark.points() if one.of == of]
    assert len(points) >= at_least
    assert sum(abs(one.error) > benchmark.MOST for one in points) == too_far
    assert benchmark.judged(of, points) == (not too_far)

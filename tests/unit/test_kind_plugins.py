"""Kinds of other packages: found by entry point; a broken one costs its own cases only."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

import packages
from golden import RUNS
from hpcbench.backends.availability import RankFacts, missing_tool, tool_facts, wanted_tools
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import planner_of
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_results
from launcher import ROOT
from results_factory import sweep

SOURCE = ROOT / "tests/data/kind_plugin"
BROKEN_SPEC = """
from hpcbench_sleep import SPEC as WHOLE
from dataclasses import replace
SPEC = replace(WHOLE, {side}="no_such_module:Side")
"""
EXTRA = "from hpcbench_sleep import SPEC as WHOLE\nfrom dataclasses import replace\n"
SLEEPS = {"kind": "sleep", "milliseconds": [1, 2]}
BARRIER = {"kind": "collective", "collective": "barrier"}


def offer(folder: Path, entry: str) -> Path:
    """Make a folder for PYTHONPATH that offers kind sleep as an entry point says."""
    packages.offer(folder, "hpcbench_sleep", "hpcbench.kinds", {"sleep": entry})
    (folder / "hpcbench_sleep").symlink_to(SOURCE / "hpcbench_sleep")
    return folder


def plan(folder: Path, *blocks: object, code: int = 0) -> str:
    """Return what `hpcbench plan` prints for 2 ranks."""
    sweep = folder / "sweep.json"
    sweep.write_text(json.dumps({"benchmarks": blocks}))
    command = [sys.executable, "-m", "hpcbench", "plan", str(sweep), "--world-size", "2"]
    env = {**os.environ, **packages.path_with(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, text=True, capture_output=True, timeout=60, env=env)
    assert done.returncode == code, done.stderr
    return done.stdout + done.stderr


def test_a_kind_is_found_and_planned(tmp_path: Path) -> None:
    told = plan(offer(tmp_path, "hpcbench_sleep:SPEC"), SLEEPS, BARRIER)
    assert "3 cases" in told


def test_its_block_is_checked(tmp_path: Path) -> None:
    folder = offer(tmp_path, "hpcbench_sleep:SPEC")
    told = plan(folder, {"kind": "sleep", "milliseconds": 0, "size": 8}, code=2)
    assert "benchmarks[0].milliseconds: must be at least 1, not 0" in told
    assert "benchmarks[0].size: unknown key" in told


def test_an_unknown_kind_is_an_error_with_the_nearest_name(tmp_path: Path) -> None:
    told = plan(offer(tmp_path, "hpcbench_sleep:SPEC"), {"kind": "sleeep"}, code=2)
    assert 'did you mean "sleep"' in told


@pytest.mark.parametrize(("entry", "reason"), [
    ("no_such_module:SPEC", "No module named 'no_such_module'"),
    ("hpcbench_sleep:NONE", "has no attribute 'NONE'"),
    ("hpcbench_sleep:__doc__", "offers a str, no KindSpec"),
])
def test_a_broken_entry_point_costs_its_own_cases(tmp_path: Path, entry: str, reason: str) -> None:
    told = plan(offer(tmp_path, entry), SLEEPS, BARRIER)
    assert "2 cases" in told
    assert "kind sleep cannot be used: " in told and reason in told


@pytest.mark.parametrize("side", ["block", "planner_path"])
def test_a_side_that_cannot_be_imported_costs_its_own_cases(tmp_path: Path, side: str) -> None:
    (tmp_path / "half.py").write_text(BROKEN_SPEC.format(side=side))
    told = plan(offer(tmp_path, "half:SPEC"), SLEEPS, BARRIER)
    assert "2 cases" in told
    assert "no_such_module:Side cannot be loaded: ModuleNotFoundError" in told


@pytest.mark.parametrize(("changed", "reason"), [
    ("name=None", "None is no name"),
    ("name='collective'", "there is a kind collective already"),
    ("aliases=('comm',)", "there is a kind comm already"),
    ("aliases=None", "TypeError"),
    ("order='x'", "TypeError"),
])
def test_a_spec_that_is_not_usable_costs_its_own_cases(
    tmp_path: Path, changed: str, reason: str,
) -> None:
    (tmp_path / "half.py").write_text(f"{EXTRA}SPEC = replace(WHOLE, {changed})\n")
    told = plan(offer(tmp_path, "half:SPEC"), SLEEPS, BARRIER)
    assert "2 cases" in told
    assert "kind sleep cannot be used: " in told and reason in told


@pytest.mark.parametrize(("side", "body", "reason"), [
    ("block", "class Side: pass", "sides:Side cannot be loaded: AttributeError"),
    ("block", "from hpcbench.plugins import Block\nclass Side(Block):\n    size: 'Nowhere' = 1",
     "sides:Side cannot be loaded: PydanticUndefinedAnnotation"),
    ("planner_path", "class Side:\n    def __init__(self): 1 / 0",
     "sides:Side cannot be loaded: ZeroDivisionError"),
    ("planner_path", "class Side: pass", "its planner's lengths raised AttributeError"),
])
def test_a_side_of_no_use_costs_its_own_cases(
    tmp_path: Path, side: str, body: str, reason: str,
) -> None:
    (tmp_path / "sides.py").write_text(f"{body}\n")
    (tmp_path / "half.py").write_text(f"{EXTRA}SPEC = replace(WHOLE, {side}='sides:Side')\n")
    told = plan(offer(tmp_path, "half:SPEC"), SLEEPS, BARRIER)
    assert "2 cases" in told and reason in told


@pytest.mark.parametrize("method", ["cases", "lengths"])
def test_a_planner_that_raises_costs_its_own_cases(tmp_path: Path, method: str) -> None:
    (tmp_path / "sides.py").write_text(
        "from hpcbench_sleep.planner import SleepPlanner\n"
        f"class Side(SleepPlanner):\n    def {method}(self, *asked): 1 / 0\n")
    (tmp_path / "half.py").write_text(f"{EXTRA}SPEC = replace(WHOLE, planner_path='sides:Side')\n")
    told = plan(offer(tmp_path, "half:SPEC"), SLEEPS, BARRIER)
    assert "2 cases" in told
    assert f"its planner's {method} raised ZeroDivisionError: division by zero" in told


@pytest.mark.parametrize(("body", "naps"), [
    ("def Side(): return {'naps': {'long': {'seconds': 9}}}", {"long": {"seconds": 9}}),
    ("def Side(): 1 / 0", None), ("1 / 0", None),
    ("def Side(): return {'schema': {'stolen': 1}}", None),
])
def test_a_catalogue_of_no_use_is_left_out_of_the_listing(
    tmp_path: Path, body: str, naps: object,
) -> None:
    (tmp_path / "sides.py").write_text(f"{body}\n")
    changed = "catalogue_path='sides:Side'"
    (tmp_path / "half.py").write_text(f"{EXTRA}SPEC = replace(WHOLE, {changed})\n")
    env = {**os.environ, **packages.path_with(offer(tmp_path, "half:SPEC"))}
    done = subprocess.run([sys.executable, "-m", "hpcbench", "list", "--no-probe", "--json"],
                          text=True, capture_output=True, timeout=60, env=env, check=True)
    found = json.loads(done.stdout)
    assert found.get("naps") == naps
    assert found["schema"] == "hpcbench.list" and "gpt2" in found["models"]


def test_a_case_whose_kind_or_runner_is_not_here_is_a_skip() -> None:
    case = replace(sweep()[0], kind="gone")
    wanted = wanted_tools([case])
    ranks = [RankFacts(rank, f"host{rank}", 0, {"tools": tool_facts(wanted)}) for rank in (0, 1)]
    assert missing_tool(case, "cpu", ranks) == "kind gone cannot be used: it is not installed"
    assert planner_of(case.kind).advice(case.workload, 1) == ""
    there = replace(ranks[0], facts={"tools": dict.fromkeys(wanted)})
    assert missing_tool(case, "cpu", [there, there]) is None
    assert missing_tool(case, "cpu", [there, ranks[1]]) == (
        "kind gone cannot be used: rank 1 on host1: it is not installed")


def test_a_deriver_that_cannot_be_loaded_hides_no_result(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
) -> None:
    with open_results(RUNS["mixed"] / "results.h5") as file:
        results = file.results
    lost = replace(kinds()["primitive"], planner_path="of:Plugin", deriver_path="no_such_module:It")
    monkeypatch.setattr("hpcbench.reduce.records.kinds", lambda: {**kinds(), "primitive": lost})
    found = with_records(results)
    assert set(found.derived) == {"collective", "training"}
    print_results(found, tmp_path)
    told = capsys.readouterr().out
    assert "kind primitive has records that cannot be derived" in told
    assert "no_such_module:It cannot be loaded" in told
    for item in found.cases:
        assert item.case.kind != "primitive" or item.case.workload.name in told

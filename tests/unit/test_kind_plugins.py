"""Kinds of other packages: found by entry point; a broken one costs its own cases only."""

from __future__ import annotations

import json
import os
import re
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
    assert 'did you mean "sleep"' in plan(folder, {"kind": "sleeep"}, code=2)


RAISES = ("from hpcbench_sleep.planner import SleepPlanner\n"
          "class Side(SleepPlanner):\n    def {}: 1 / 0")
UNUSABLE = {
    "no_such_module:SPEC": ("", "", "kind sleep cannot be used: .*No module named 'no_such_m"),
    "hpcbench_sleep:NONE": ("", "", "kind sleep cannot be used: .*has no attribute 'NONE'"),
    "hpcbench_sleep:__doc__": ("", "", "kind sleep cannot be used: .*offers a str, no KindSpec"),
    "no name": ("name=None", "", "kind sleep cannot be used: .*None is no name"),
    "a name that is taken": ("name='collective'", "", "there is a kind collective already"),
    "an alias that is taken": ("aliases=('comm',)", "", "there is a kind comm already"),
    "no aliases": ("aliases=None", "", "kind sleep cannot be used: .*TypeError"),
    "no order": ("order='x'", "", "kind sleep cannot be used: .*TypeError"),
    **{f"no module of {side}": (f"{side}='no_such_module:Side'", "",
                                "no_such_module:Side cannot be loaded: ModuleNotFoundError")
       for side in ("block", "planner_path")},
    "no block": ("block='sides:Side'", "class Side: pass", "cannot be loaded: AttributeError"),
    "a block of no type": (
        "block='sides:Side'", "from hpcbench.plugins import Block\nclass Side(Block):\n"
        "    size: 'Nowhere' = 1", "cannot be loaded: PydanticUndefinedAnnotation"),
    "no planner": ("planner_path='sides:Side'", "class Side: pass",
                   "its planner's lengths raised AttributeError"),
    **{f"{method} raises": ("planner_path='sides:Side'", RAISES.format(method), reason)
       for method, reason in (
           ("__init__(self)", "sides:Side cannot be loaded: ZeroDivisionError"),
           ("cases(self, *asked)", "its planner's cases raised ZeroDivisionError: division"),
           ("lengths(self, *asked)", "its planner's lengths raised ZeroDivisionError: division"))},
}
"""Where a kind is said to be, or what is wrong -> change of its spec, a side, and the reason."""


@pytest.mark.parametrize("name", UNUSABLE)
def test_a_kind_of_no_use_costs_its_own_cases(tmp_path: Path, name: str) -> None:
    changed, side, reason = UNUSABLE[name]
    (tmp_path / "sides.py").write_text(f"{side}\n")
    (tmp_path / "half.py").write_text(f"{EXTRA}SPEC = replace(WHOLE, {changed})\n")
    told = plan(offer(tmp_path, "half:SPEC" if changed else name), SLEEPS, BARRIER)
    assert "2 cases" in told and re.search(reason, " ".join(told.split())), told


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

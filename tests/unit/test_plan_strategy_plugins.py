"""Strategies of plug-ins that are wrong: each is told, and costs only its own cases."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.training.plan.planner import TrainingPlanner
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.spec import registry, strategies, strategy
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan

NUMBERS = count()
HEAD = """
from dataclasses import replace
from hpcbench.kinds.training.plan.spec import *
from hpcbench.kinds.training.plan.spec import *
from hpcbench.plan.points import Values
def mine(**fields):
    return replace(StrategySpec(
        "mine", "mine", "mine:Mine", degrees=lambda ranks, options: Degrees(dp=ranks),
        calls=lambda work: ("all_reduce",), options={"parts": Values(1)}), **fields)
"""
Offering = Callable[[str], None]


@pytest.fixture
def offering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Offering]:
    """Return what installs a plug-in whose entry point ``mine`` is an expression."""
    monkeypatch.syspath_prepend(tmp_path)

    def offer(offered: str) -> None:
        name = f"hpcbench_strategy_{next(NUMBERS)}"
        (tmp_path / f"{name}.py").write_text(f"{HEAD}\nOFFERED = {offered}\n")
        facts = tmp_path / f"{name}-1.0.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (facts / "entry_points.txt").write_text(
            f"[hpcbench.strategies]\nmine = {name}:OFFERED\n")
        registry.cache_clear()

    yield offer
    monkeypatch.undo()
    registry.cache_clear()


def case_of(strategies: object) -> Case:
    block = {"kind": "training", "model": "transformer-tiny", "strategies": strategies}
    (case,) = make_plan(check_config({"benchmarks": [block]}, "c.json"), 4).cases
    return case


def test_one_that_is_right_is_planned_like_ours(offering: Offering) -> None:
    offering("mine(layout=lambda work: Layout(buckets=Buckets(25)))")
    work = training_of(case_of({"mine": {"parts": 3}}))
    assert (work.strategy, work.options, work.dp) == ("mine", (("parts", 3),), 4)
    assert [item.collective for item in predict(work).of_ranks[0].calls] == ["all_reduce"]
    assert work.features.needs == ("mine",)  # a rank without the package skips the case
    assert strategies()[-1].name == "mine"


@pytest.mark.parametrize(("offered", "problem"), [
    ("1 / 0", "ZeroDivisionError: division by zero"),
    ("'mine'", "offers a str, no StrategySpec"),
    ("mine(name='data')", "there is a strategy data already"),
])
def test_one_that_cannot_be_used_costs_its_own_cases(
    offered: str, problem: str, offering: Offering,
) -> None:
    offering(offered)
    (plugin,) = registry().offers
    assert plugin.problem.startswith(problem)
    case = case_of({"mine": {"anything": 4}})
    assert case.skip == f"strategy mine cannot be used: {plugin.origin}: {plugin.problem}"
    assert training_of(case_of("data")).strategy == "data"


@pytest.mark.parametrize(("offered", "reason"), [
    ("mine(degrees=lambda ranks, options: 1 / 0)", "ZeroDivisionError: division by zero"),
    ("mine(degrees=lambda ranks, options: Degrees())",
     "ValueError: degrees returned dp=1 x cp=1 x tp=1 x pp=1 for 4 ranks"),
    ("mine(layout=lambda work: 1 / 0)", "ZeroDivisionError: division by zero"),
    ("mine(layout=lambda work: Layout(groups=Groups(0)))",
     "ZeroDivisionError: integer division or modulo by zero"),
    ("mine(calls=lambda work: 1 / 0)", "ZeroDivisionError: division by zero"),
    ("mine(traffic=lambda work, held: 1 / 0)", "ZeroDivisionError: division by zero"),
    ("mine(idle=lambda options: 1 / 0)", "ZeroDivisionError: division by zero"),
])
def test_functions_that_raise_are_reasons_to_skip(
    offered: str, reason: str, offering: Offering,
) -> None:
    offering(offered)
    skip = case_of("mine").skip
    assert skip.startswith(f"its plug-in cannot plan it: {reason}")


def test_a_name_that_nobody_offers_is_refused(offering: Offering) -> None:
    offering("mine()")
    with pytest.raises(ConfigError, match='"minee" is not known; did you mean "mine"'):
        case_of("minee")


def test_what_was_stored_is_read_without_the_plug_in(
    offering: Offering, monkeypatch: pytest.MonkeyPatch,
) -> None:
    offering("mine()")
    case = case_of("mine")
    monkeypatch.setattr("hpcbench.registry.entry_points", lambda group: ())
    registry.cache_clear()
    assert strategy("mine") is None
    assert case_from_json(case_to_json(case)) == case
    assert predict(training_of(case)).of_ranks[0].calls == ()  # nobody tells what a step calls


def test_plans_that_stored_the_place_of_a_class_are_read() -> None:
    case = case_of("data")
    assert isinstance(case.workload, Training)
    place = "hpcbench.kinds.training.run.strategies.data:Data"
    stored = {**case.workload.to_json(), "runner": place}
    assert TrainingPlanner().workload_from_json(stored) == case.workload

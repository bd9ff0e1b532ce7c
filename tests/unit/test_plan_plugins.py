"""Plug-ins that are wrong: each is told, and costs only itself (docs/plugins.md)."""

from __future__ import annotations

from itertools import count
from pathlib import Path

import pytest

from hpcbench.config.load import check_config
from hpcbench.dry_run import _not_tried
from hpcbench.errors import ConfigError
from hpcbench.kinds.primitive.derive import problem_key
from hpcbench.kinds.primitive.plan.implementations import PrimitiveRegistry, Spec, load_registry
from hpcbench.kinds.primitive.plan.workload import primitive_of
from hpcbench.kinds.primitive.present import primitive_lines
from hpcbench.plan.case import Plan, case_from_json, case_to_json, plan_from_json, plan_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.registry import Offer
from hpcbench.views.table import Line

NUMBERS = count()
HEAD = """
from hpcbench.kinds.primitive.plan.spec import *
from dataclasses import replace
from hpcbench.kinds.primitive.plan.implementations import TP_MLP as MLP
GOOD = ImplementationSpec("own", "good", {"tp_columnwise": "own:Columnwise"})
def own(**fields): return replace(GOOD, **fields)
def primitive(**fields): return replace(MLP, **{"name": "own_mlp", **fields})
def doing(work): return [primitive(work=lambda problem: work),
                         own(runners={"own_mlp": "own:Mlp"})]
"""


@pytest.fixture
def offer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder on Python's path; `offering` puts a plug-in there."""
    monkeypatch.syspath_prepend(tmp_path)
    return tmp_path


def offering(folder: Path, offered: str) -> PrimitiveRegistry:
    """Return the registry with one plug-in more, whose entry point is an expression."""
    name = f"hpcbench_plugin_{next(NUMBERS)}"
    (folder / f"{name}.py").write_text(f"{HEAD}\nOFFERED = {offered}\n")
    facts = folder / f"{name}-1.0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (facts / "entry_points.txt").write_text(f"[hpcbench.primitives]\nmine = {name}:OFFERED\n")
    return load_registry()


def mine(registry: PrimitiveRegistry) -> Offer[Spec]:
    (found,) = [plugin for plugin in registry.plugins if plugin.name == "mine"]
    return found


def plan_of(implementations: object, primitive: str = "tp_columnwise", **keys: object) -> Plan:
    block = {"kind": "primitive", "primitive": primitive, "m": 64, "n": 32, "k": 16,
             "implementations": implementations, **keys}
    return make_plan(check_config({"benchmarks": [block]}, "c.json"), 4)


@pytest.mark.parametrize(("offered", "problem"), [
    ("3", "offers a int, no PrimitiveSpec or ImplementationSpec"),
    ("own(runners=None)", "TypeError: "),
    ("own(name='pytorch')", "there is a torch of tp_columnwise already"),
    ("[GOOD, own(meaning='the same')]", "there is a own of tp_columnwise already"),
    ("[primitive(), primitive()]", "there is a primitive own_mlp already"),
    ("MLP", "there is a primitive tp_mlp already"),
])
def test_a_wrong_one_is_reported_and_costs_only_itself(
    offer: Path, offered: str, problem: str,
) -> None:
    registry = offering(offer, offered)
    assert problem in mine(registry).problem and not mine(registry).values
    assert "own" not in registry.implementations and "own_mlp" not in registry.primitives
    assert any(isinstance(line, Line) and "cannot be used: " in line.text
               for line in primitive_lines(registry))
    assert all(case.skip is None for case in plan_of("torch").cases)


@pytest.mark.parametrize(("offered", "reason"), [
    ("doing(None)", "AttributeError: 'NoneType' object has no attribute 'traffic'"),
    ("primitive(work=lambda problem: 1 / 0), own(runners={'own_mlp': 'own:Mlp'})",
     "ZeroDivisionError: division by zero"),
    ("own(env=lambda name, problem: 1 / 0)", "ZeroDivisionError: division by zero"),
    ("own(unfit=lambda name, problem: 1 / 0)", "ZeroDivisionError: division by zero"),
])
def test_functions_that_raise_cost_its_cases(
    offer: Path, offered: str, reason: str,
) -> None:
    assert not mine(offering(offer, offered)).problem
    primitive = "own_mlp" if "own_mlp" in offered or "doing" in offered else "tp_columnwise"
    (case,) = plan_of("own", primitive).cases
    assert case.skip and case.skip.startswith("its plug-in cannot plan it: ")
    assert reason in case.skip
    (torch,) = plan_of("torch").cases
    assert torch.skip is None


def test_a_good_one_is_planned(offer: Path) -> None:
    registry = offering(offer, "[primitive(), own(), own(runners={'own_mlp': 'own:Mlp'})]")
    assert len(mine(registry).values) == 3
    assert any(isinstance(line, Line) and line.text.endswith(
        "primitive own_mlp; own of tp_columnwise; own of own_mlp")
        for line in primitive_lines(registry))
    plan = plan_of("own", "own_mlp")
    assert [case.skip for case in plan.cases] == [None]
    assert plan_from_json(plan_to_json(plan)) == plan


def test_it_runs_with_its_backends_only(offer: Path) -> None:
    offering(offer, "own(backends=('ucc',))")
    skips = [case.skip for case in plan_of("own", backend=["gloo", "ucc", "ucc/tl/ucp"]).cases]
    assert skips == ["own runs with ucc only, not with gloo", None, None]


def test_its_variables_are_its_cases_and_a_block_can_change_them(offer: Path) -> None:
    """They make no other problem of it: torch without them is what it is compared with."""
    offering(offer, "own(env=lambda name, problem: {'A': problem.order, 'B': '1'})")
    own, torch = plan_of(["own", "torch"], env={"B": "2"}).cases
    assert (own.env, torch.env) == ((("A", "AG_before"), ("B", "2")), (("B", "2"),))
    assert primitive_of(own).variables == ("A",)
    assert problem_key(own) == problem_key(torch)
    assert case_from_json(case_to_json(own)) == own


def test_what_connects_its_ranks_is_not_tried_in_a_dry_run(offer: Path) -> None:
    offering(offer, "own(connects=True)")
    (case,) = plan_of("own").cases
    trial = _not_tried(case)
    assert trial is not None and trial.outcome == "not tried"
    assert trial.reason == "own connects the ranks by itself, and a dry run has one process"
    assert case_from_json(case_to_json(case)) == case


def test_an_option_of_the_block_must_suit_all_that_have_it(offer: Path) -> None:
    offering(offer, "own(options={'chunks': Values('few', ('few', 'many'))})")
    for value, problem in (
            ("many", '"many" must be a whole number from 1'), (2, "2 is not known; allowed: few")):
        with pytest.raises(ConfigError, match="options.chunks") as caught:
            plan_of(["own", "chunked_pipeline"], options={"chunks": value})
        assert problem in str(caught.value)
        assert "give it in implementations, to those that do" in str(caught.value)
    assert [case.skip for case in plan_of(
        {"own": {"chunks": "many"}, "chunked_pipeline": {"chunks": 2}}).cases] == [None, None]

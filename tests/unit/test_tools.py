"""What implementations need of a machine: modules and compilers, asked before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts
from hpcbench.backends.tools import tool_facts, untooled, wanted_tools
from hpcbench.config.load import check_config
from hpcbench.dry_run import _not_tried
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan


def case_of(implementation: str, backend: str, device: str = "auto") -> Case:
    """Return the case of one implementation of tp_columnwise on 2 ranks."""
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
             "implementations": implementation, "backend": backend, "device": device}
    plan = make_plan(check_config({"benchmarks": [block]}, "test"), 2)
    return plan.cases[0]


def ranks(*tools: dict[str, Any]) -> list[RankFacts]:
    """Return ranks on hosts of their own, with these facts about tools."""
    return [RankFacts(rank, f"host{rank}", 0, {"tools": own}) for rank, own in enumerate(tools)]


def test_a_plan_asks_for_what_its_cases_need_and_no_more() -> None:
    assert wanted_tools([case_of("torch", "gloo")]) == []
    triton, compiled = case_of("triton", "nccl"), case_of("compiled", "gloo")
    assert wanted_tools([triton, compiled]) == ["compiler", "triton"]
    assert wanted_tools([replace(triton, skip="why")]) == []
    assert triton.needs == ("nccl", "cuda", "triton", "compiler")
    assert case_from_json(case_to_json(triton)) == triton
    assert compiled.estimate_s > case_of("torch", "gloo").estimate_s + 5


def test_a_tool_that_a_rank_lacks_is_told_with_the_rank() -> None:
    case = case_of("triton", "nccl")
    here = {"triton": None, "compiler": {"cpu": "no g++", "cuda": None}}
    assert untooled(case, "cuda", ranks(here, here)) is None
    missing = tool_facts(["triton", "no_such_module"])["no_such_module"]
    assert missing == (
        "the Python module no_such_module is not installed: pip install no_such_module")
    assert untooled(case, "cuda", ranks(here, {**here, "triton": missing})) == (
        f"triton: rank 1 on host1: {missing}")
    compiled = case_of("compiled", "gloo")
    assert untooled(compiled, "cpu", ranks(here, here)) == "compiled: no g++"
    assert untooled(compiled, "cuda", ranks(here, here)) is None
    inner = tool_facts(["json.no_such_module"])["json.no_such_module"]
    assert inner == "this json has no module json.no_such_module: a newer one is needed"


def test_a_training_asks_for_the_library_of_its_model(monkeypatch: pytest.MonkeyPatch) -> None:
    block = {"kind": "training", "model": "gpt2", "strategies": "fsdp", "compile": [False, True],
             "library": "transformers"}
    plain, compiled = make_plan(check_config({"benchmarks": [block]}, "test"), 2).cases
    assert (plain.needs, compiled.needs) == (("transformers",), ("transformers", "compiler"))
    assert compiled.estimate_s > plain.estimate_s + 15
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    facts = tool_facts(["transformers"]) | {"compiler": {"cpu": "no g++", "cuda": None}}
    missing = ("the Python module transformers is not installed: "
               "pip install '.[models]' in a checkout of hpcbench")
    assert untooled(plain, "cpu", ranks(facts, facts)) == f"fsdp: {missing}"
    there = facts | {"transformers": None}
    assert untooled(plain, "cpu", ranks(there, there)) is None
    assert untooled(compiled, "cpu", ranks(there, there)) == "fsdp: no g++"
    trial = _not_tried(plain)
    assert trial is not None
    assert (trial.outcome, trial.reason) == ("not tried", missing)


def test_an_implementation_has_its_devices() -> None:
    assert case_of("symm_mem", "gloo").skip == "symm_mem runs on cuda only, not on cpu"
    machine_decides = case_of("symm_mem", "ucc")
    assert machine_decides.skip is None
    assert untooled(machine_decides, "cpu", ranks({}, {})) == (
        "symm_mem runs on cuda only, not on cpu")


def test_a_compiler_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert tool_facts(["compiler"])["compiler"]["cpu"] == (
        "there is no compiler no-such-compiler: install one, or set CXX")
    monkeypatch.setenv("CXX", "false")
    assert tool_facts(["compiler"])["compiler"]["cpu"] == "the compiler false fails: exit code 1"
    monkeypatch.delenv("CXX")
    assert tool_facts(["compiler"])["compiler"]["cpu"] is None


def test_modules_of_an_extra_are_installed_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    assert tool_facts(["peft", "triton"]) == {
        "peft": "the Python module peft is not installed: "
                "pip install '.[models]' in a checkout of hpcbench",
        "triton": "the Python module triton is not installed: pip install triton"}

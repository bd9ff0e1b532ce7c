"""What implementations need of a machine: modules and compilers, asked before anything starts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, missing_tool, tool_facts, wanted_tools
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


def ranks(*tools: dict[str, Any], **more: Any) -> list[RankFacts]:
    """Return ranks on hosts of their own, with an H100, and these facts about tools."""
    return [RankFacts(rank, f"host{rank}", 0, {
        "cuda": gpus_of("NVIDIA H100 80GB HBM3", 9, 0), "versions": {"torch": "2.13.0"},
        "tools": own, **more}) for rank, own in enumerate(tools)]


def gpus_of(name: str, major: int, minor: int) -> dict[str, Any]:
    """Return the facts of a machine with one GPU."""
    return {"names": [name], "uuids": ["u0"], "visible": None, "capabilities": [[major, minor]]}


def test_a_plan_asks_for_what_its_cases_need_and_no_more() -> None:
    assert wanted_tools([case_of("torch", "gloo")]) == []
    triton, compiled = case_of("triton", "nccl"), case_of("compiled", "gloo")
    assert wanted_tools([triton, compiled]) == ["compiler", "triton"]
    assert wanted_tools([replace(triton, skip="why")]) == []
    assert triton.needs == ("nccl", "cuda", "triton", "compiler")
    assert case_from_json(case_to_json(triton)) == triton
    assert compiled.estimate_s > case_of("torch", "gloo").estimate_s + 5


def test_a_tool_that_a_rank_lacks_is_named_with_the_rank() -> None:
    case = case_of("triton", "nccl")
    here = {"triton": None, "compiler": {"cpu": "no g++", "cuda": None}}
    assert missing_tool(case, "cuda", ranks(here, here)) is None
    missing = tool_facts(["triton", "no_such_module"])["no_such_module"]
    assert missing == (
        "the Python module no_such_module is not installed: pip install no_such_module")
    assert missing_tool(case, "cuda", ranks(here, {**here, "triton": missing})) == (
        f"triton: rank 1 on host1: {missing}")
    compiled = case_of("compiled", "gloo")
    assert missing_tool(compiled, "cpu", ranks(here, here)) == "compiled: no g++"
    assert missing_tool(compiled, "cuda", ranks(here, here)) is None
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
    assert missing_tool(plain, "cpu", ranks(facts, facts)) == f"fsdp: {missing}"
    there = facts | {"transformers": None}
    assert missing_tool(plain, "cpu", ranks(there, there)) is None
    assert missing_tool(compiled, "cpu", ranks(there, there)) == "fsdp: no g++"
    trial = _not_tried(plain)
    assert (trial.outcome, trial.reason) == ("not tried", missing)


@pytest.mark.parametrize(("name", "major", "minor", "runs"), [
    ("Tesla V100-SXM2-16GB", 7, 0, False), ("Tesla T4", 7, 5, False),
    ("NVIDIA A100-SXM4-80GB", 8, 0, True), ("NVIDIA A10", 8, 6, True),
    ("NVIDIA H100 80GB HBM3", 9, 0, True), ("NVIDIA B200", 10, 0, True)])
def test_the_kernel_is_skipped_on_gpus_whose_tensor_cores_triton_does_not_use(
    name: str, major: int, minor: int, runs: bool,
) -> None:
    case, tools = case_of("triton", "nccl"), {"triton": None, "compiler": {"cuda": None}}
    found = missing_tool(case, "cuda", ranks(tools, tools, cuda=gpus_of(name, major, minor)))
    assert found == (None if runs else (
        "triton of fp32 needs a GPU of compute capability 8.0 or newer; "
        f"{name} has {major}.{minor}"))
    assert missing_tool(case_of("torch", "nccl"), "cuda", ranks(
        tools, tools, cuda=gpus_of(name, major, minor))) is None


@pytest.mark.parametrize(("multiprocessors", "most_blocks", "reason"), [
    (16, {}, "triton: the GPU has 16 multiprocessors, and 33 are needed"),  # MIG 1g of an H100
    (16, {"NCCL_MAX_CTAS": "8"}, None), (33, {}, None), (132, {}, None),
    (58, {"NCCL_MIN_CTAS": "1"}, "triton: the GPU has 58 multiprocessors, and 65 are needed")])
def test_the_kernel_is_skipped_on_gpus_that_have_no_room_for_it_beside_the_communication(
    multiprocessors: int, most_blocks: dict[str, str], reason: str | None,
) -> None:
    block = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
             "implementations": "triton", "backend": "nccl", "env": most_blocks}
    (case,) = make_plan(check_config({"benchmarks": [block]}, "test"), 2).cases
    tools = {"triton": None, "compiler": {"cuda": None}}
    gpu = {**gpus_of("NVIDIA H100 80GB HBM3", 9, 0), "multiprocessors": [multiprocessors]}
    assert missing_tool(case, "cuda", ranks(tools, tools, cuda=gpu)) == reason
    assert case_from_json(case_to_json(case)) == case


def test_a_mixed_job_names_the_rank_with_the_older_gpu() -> None:
    tools = {"triton": None, "compiler": {"cuda": None}}
    newer, older = ranks(tools, tools)
    older = replace(older, facts={**older.facts, "cuda": gpus_of("Tesla V100", 7, 0)})
    found = missing_tool(case_of("triton", "nccl"), "cuda", [newer, older])
    assert found is not None and "rank 1 on host1" in found


def test_what_states_a_compute_capability_is_skipped_on_rocm() -> None:
    tools = {"triton": None, "compiler": {"cuda": None}}
    amd = ranks(tools, tools, cuda=gpus_of("AMD Instinct MI300X", 9, 4),
                versions={"torch": "2.13.0", "hip": "7.0"})
    assert "ROCm" in str(missing_tool(case_of("triton", "nccl"), "cuda", amd))
    assert missing_tool(case_of("torch", "nccl"), "cuda", amd) is None


def test_an_implementation_has_its_devices() -> None:
    assert case_of("symm_mem", "gloo").skip == "symm_mem runs on cuda only, not on cpu"
    machine_decides = case_of("symm_mem", "ucc")
    assert machine_decides.skip is None
    assert missing_tool(machine_decides, "cpu", ranks({}, {})) == (
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

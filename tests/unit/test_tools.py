"""What implementations and backends need of a machine, asked before anything starts."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch.distributed as dist

from hpcbench.backends.availability import (
    RankFacts,
    lacking,
    missing_tool,
    resolve_device,
    tool_facts,
    unavailable,
    wanted_tools,
)
from hpcbench.backends.child import Answers, Child
from hpcbench.config.axes import library_of
from hpcbench.config.load import check_config
from hpcbench.dry_run import _not_tried
from hpcbench.errors import ConfigError
from hpcbench.operations.collectives import collectives
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.plan.support import needs, traits_of


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


WORKING = {"reason": None, "source": "torch_ucc", "layers": ["self", "ucp"], "lacks": {},
           "without_cuda": None, "versions": {"ucc": "1.10.0", "ucx": "1.22.0"}}
NO_GPU = {"available": False, "names": [], "uuids": [], "memory_bytes": [],
          "reason": "no GPU is visible"}
ONE_GPU = {"available": True, "names": ["A"], "uuids": ["u0"], "memory_bytes": [1],
           "no_code": [None], "visible": None, "reason": None}


def rank(number: int = 0, *, cuda: dict[str, Any] = NO_GPU, **ucc: Any) -> RankFacts:
    facts = {"ucc": {**WORKING, **ucc}, "cuda": cuda, "versions": {"torch": "2.13.0"}, "built": {}}
    return RankFacts(number, "n1", number, facts)


def case(backend: str = "ucc", *, env: dict[str, str] | None = None, **work: Any) -> Case:
    """Return a case of 4 ranks; the options are those of its workload."""
    (planned,) = make_plan(check_config(
        {"benchmarks": [{"kind": "collective", "collective": "all_reduce"}]}, "test"), 4).cases
    return dataclasses.replace(planned, backend=backend, env=tuple((env or {}).items()),
                               workload=dataclasses.replace(planned.workload, **work))


def test_ucc_needs_torch_or_the_plug_in_to_give_it() -> None:
    assert unavailable("ucc", "cpu", [rank(0), rank(1)]) is None
    said = "torch_ucc cannot be imported: libucp.so.0: cannot open shared object file"
    assert unavailable("ucc", "cpu", [rank(0, reason=said)]) == f"ucc: {said}"
    assert (unavailable("ucc/tl/ucp", "cpu", [rank(0), rank(1, reason=said)])
            == f"rank 1 on n1: ucc: {said}")


def test_a_layer_that_the_library_lacks_is_a_skip_that_names_those_it_has() -> None:
    assert unavailable("ucc/tl/ucp", "cpu", [rank()]) is None
    assert (unavailable("ucc/tl/nccl", "cuda", [rank(cuda=ONE_GPU)])
            == "ucc/tl/nccl: this UCC has no layer nccl, only self, ucp")
    assert unavailable("ucc/tl/nccl", "cuda", [rank(cuda=ONE_GPU, layers=None)]) is None


def test_ucc_runs_on_gpus_only_if_it_takes_their_memory() -> None:
    assert resolve_device("ucc", "auto", [rank(cuda=ONE_GPU)]) == "cuda"
    host_only = rank(cuda=ONE_GPU, without_cuda="unsupported device type cuda")
    assert resolve_device("ucc", "auto", [host_only]) == "cpu"
    assert (unavailable("ucc", "cuda", [host_only])
            == "ucc on cuda: unsupported device type cuda")


def test_what_ucc_refused_when_it_was_tried_is_a_skip() -> None:
    refusing = rank(lacks={"all_gather": "No backend", "avg": "Not supported ReduceOp for UCC"})
    assert lacking(case(), "cpu", [refusing]) is None
    assert (lacking(case("ucc/tl/ucp", collective="all_gather", op=None), "cpu", [refusing])
            == "torch_ucc has no all_gather that torch 2.13.0 can call: No backend")
    assert "has no avg that" in str(lacking(case(op="avg"), "cpu", [rank(), refusing]))
    assert lacking(case("gloo", op="avg"), "cpu", [refusing]) is None


@pytest.mark.parametrize("collective", ["reduce", "gather", "scatter"])
def test_a_collective_with_a_root_that_ucc_refused_is_a_skip(collective: str) -> None:
    asked = case(collective=collective, op="sum" if collective == "reduce" else None, root=1)
    assert lacking(asked, "cpu", [rank()]) is None
    refusing = rank(lacks={collective: "Operation is not supported"})
    assert (lacking(asked, "cpu", [refusing])
            == f"torch_ucc has no {collective} that torch 2.13.0 can call: "
               "Operation is not supported")


def test_parts_of_different_sizes_can_be_refused_alone() -> None:
    refusing = rank(lacks={"uneven all_to_all": "Operation is not supported"})
    asked = case(collective="all_to_all", op=None)
    assert lacking(asked, "cpu", [refusing]) is None
    uneven = case(collective="all_to_all", op=None, split="zero")
    assert "has no uneven all_to_all that" in str(lacking(uneven, "cpu", [refusing]))


def test_reductions_of_fp16_go_wrong_among_ranks_and_on_the_host_only() -> None:
    assert "no reduction of fp16" in str(lacking(case(dtype="fp16"), "cpu", [rank()]))
    assert "no reduction of fp16" in str(
        lacking(case(dtype="fp16", collective="reduce", root=0), "cpu", [rank()]))
    assert lacking(case(dtype="fp16"), "cuda", [rank()]) is None
    assert lacking(case(dtype="bf16"), "cpu", [rank()]) is None
    assert lacking(case(dtype="fp16", groups=4), "cpu", [rank()]) is None, "groups of one rank"
    moved = case(dtype="fp16", collective="broadcast", op=None)
    assert lacking(moved, "cpu", [rank()]) is None


def test_a_reduce_scatter_of_avg_is_refused_by_layer_ucp_unless_it_divides_last() -> None:
    """One rank cannot find out: its layer is self, which has all ops."""
    asked = {"collective": "reduce_scatter", "op": "avg"}
    assert "UCC_TL_UCP_REDUCE_AVG_PRE_OP=n" in str(lacking(case(**asked), "cpu", [rank()]))
    assert "layer ucp" in str(lacking(case("ucc/tl/ucp", **asked), "cuda", [rank()]))
    assert lacking(case("ucc/tl/nccl", **asked), "cuda", [rank()]) is None
    assert lacking(case(**asked, groups=4), "cpu", [rank()]) is None
    assert lacking(case(collective="reduce", op="avg", root=0), "cpu", [rank()]) is None
    for value, refused in (("n", False), ("NO", False), ("0", False), ("y", True)):
        env = {"UCC_TL_UCP_REDUCE_AVG_PRE_OP": value}
        assert bool(lacking(case(**asked, env=env), "cpu", [rank()])) is refused, value


def test_sends_that_never_reach_the_layer_are_not_shown_as_its_own() -> None:
    ring = {"collective": "send_recv", "op": None}
    assert "with UCX, never" in str(lacking(case("ucc/tl/nccl", **ring), "cuda", [rank()]))
    assert lacking(case("ucc/tl/nccl", **ring), "cuda", [rank(source="torch")]) is None
    assert lacking(case("ucc/tl/ucp", **ring), "cpu", [rank()]) is None


def test_the_probe_tries_all_that_one_rank_can_call() -> None:
    """Its calls are those of the workloads, so they are tried on gloo, which has all of them."""
    pytest.importorskip("torch")
    from hpcbench.backends.groups import one_rank_calls

    tried = set(one_rank_calls())
    assert set(collectives()) - tried == {"all_reduce", "send_recv"}
    assert tried - set(collectives()) == {"avg", "uneven all_to_all"}
    assert Child(_refused_by_gloo).wait(60) == Answers({"refused": {}}, None)


def _refused_by_gloo() -> Iterator[tuple[str, Any]]:
    import torch.distributed as dist

    from hpcbench.backends.groups import one_rank_calls, refused_by_ucc

    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield "refused", refused_by_ucc(one_rank_calls())


def test_a_refusal_is_reported_in_the_library_s_own_words() -> None:
    """torch_ucc's reduce looks avg up with std::map::at, which Python sees as an IndexError."""
    pytest.importorskip("torch")
    from hpcbench.backends.groups import refused_by_ucc

    def refuse() -> None:
        raise IndexError("map::at\nand where")

    assert refused_by_ucc({"reduce": refuse, "scatter": lambda: None}) == {"reduce": "map::at"}


def test_a_probe_that_dies_is_a_reason_and_not_the_end() -> None:
    pytest.importorskip("torch")
    from hpcbench.backends.groups import ucc_facts

    layers = {"layers": ["ucp"], "reason": None}
    assert ucc_facts(Answers(layers, None)).items() >= layers.items()
    lost = ucc_facts(Answers({"layers": ["ucp"]}, "ended by signal 11 (SIGSEGV)"))
    assert lost["reason"].endswith("the process ended by signal 11 (SIGSEGV)")
    assert lost["layers"] is None and lost["lacks"] == {}


def test_a_refusal_without_a_text_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    import torch.distributed as dist

    from hpcbench.backends import groups as ucc

    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError

    monkeypatch.setattr(ucc, "load_ucc", lambda: "")
    monkeypatch.setattr(ucc, "_layers", lambda: None)
    monkeypatch.setattr(ucc, "_versions", dict)
    monkeypatch.setattr(dist, "init_process_group", refuse)
    assert dict(ucc._try_everything())["reason"].startswith("a group of one rank does not work")


COLLECTIVE = {"kind": "collective", "collective": "all_reduce", "size": 64}
PAIR = "torch:cpu:gloo,cuda:nccl"


def planned(**options: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [{**COLLECTIVE, **options}]}, "test"), 2).cases


@pytest.mark.parametrize("name", [
    "torch:", "torch: gloo", "torch:cpu:", "torch::gloo", "torch:cpu:gloo,", "torch:cpu:gloo,nccl",
    "torch:cpu:gloo:x", "torch:gloo/x", "Torch:gloo", "torch:" + "x" * 999, "torch:gloo\n"])
def test_a_name_that_torch_cannot_take_is_one_line(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        planned(backend=name)
    (line,) = str(caught.value).splitlines()
    assert "benchmarks[0].backend" in line and "torch:NAME" in line


@pytest.mark.parametrize(("name", "device", "library"), [
    ("torch:gloo", "cpu", "gloo"), ("torch:GLOO", "", "gloo"), ("torch:cpu:gloo", "auto", "gloo"),
    (PAIR, "cpu", "gloo"), (PAIR, "cuda", "nccl"), (PAIR, "auto", "cpu:gloo,cuda:nccl"),
    ("ucc/tl/ucp", "cuda", "ucc"), ("torch:xccl", "cpu", "xccl")])
def test_the_library_of_a_name(name: str, device: str, library: str) -> None:
    assert library_of(name, device) == library


def test_the_case_has_the_name_as_it_was_typed_and_needs_it() -> None:
    (case,) = planned(backend="torch:GLOO")
    assert case.backend == "torch:GLOO" and "torch:GLOO" in case.label.split()
    assert case.needs == ("torch:GLOO",) == needs("torch:GLOO", "cpu")
    assert wanted_tools([case]) == ["torch:GLOO"]
    assert case_from_json(case_to_json(case)) == case


@pytest.mark.parametrize(("name", "devices"), [
    ("torch:gloo", {"auto": "cpu"}), ("torch:cpu:gloo", {"auto": "cpu", "cuda": None}),
    ("torch:cuda:nccl", {"auto": "cuda", "cpu": None}), ("torch:nccl", {"auto": "cuda"}),
    (PAIR, {"auto": "auto", "cpu": "cpu", "cuda": "cuda", "mps": None}),
    ("torch:third", {"auto": "auto", "cpu": "cpu", "cuda": "cuda"})])
def test_devices_are_those_of_the_library(name: str, devices: dict[str, str | None]) -> None:
    for device, expected in devices.items():
        (case,) = planned(backend=name, device=device)
        assert (case.skip is None) == (expected is not None), case.skip
        assert expected in (None, case.device)


@pytest.mark.parametrize("options", [
    {"collective": "all_gather", "uneven": "linear"}, {"op": "avg", "dtype": "int32"}])
def test_what_a_library_lacks_is_a_skip_under_each_of_its_names(options: dict[str, Any]) -> None:
    names = ["gloo", "torch:gloo", "torch:GLOO", "torch:cpu:gloo"]
    assert all(case.skip for case in planned(backend=names, **options))
    (on_cuda,) = planned(backend=PAIR, device="cuda", **options)
    (undecided,) = planned(backend=PAIR, **options)
    assert on_cuda.skip is None is undecided.skip
    rank = RankFacts(0, "here", 0, {})
    assert lacking(undecided, "cpu", [rank] * 2) and not lacking(undecided, "cuda", [rank] * 2)


def test_traits_of_a_third_library_allow_everything() -> None:
    assert traits_of("torch:third").devices == ("auto", "cpu", "cuda")
    assert not traits_of("torch:third").excluded


def test_facts_of_names_are_those_of_this_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dist.Backend, "backend_list", [*dist.Backend.backend_list, "listed"])
    names = ["torch:gloo", "torch:cpu:gloo", "torch:no_such", "torch:listed",
             "torch:cpu:gloo,cuda:no_such"]
    facts = tool_facts(names)
    assert [facts[name]["reason"] is None for name in names] == [True, True, False, False, False]
    assert "no_such" in facts["torch:no_such"]["reason"]
    assert "listed" not in facts["torch:no_such"]["reason"]
    assert facts["torch:gloo"]["devices"][0] == "cpu" == facts["torch:cpu:gloo"]["devices"][0]
    here = [RankFacts(0, "here", 0, {"tools": facts})]
    assert unavailable("torch:gloo", "cpu", here) is None
    assert unavailable("torch:cpu:gloo", "cuda", here)


def test_a_name_without_known_devices_takes_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    registered = {**dist.Backend._plugins, "THIRD": None}
    monkeypatch.setattr(dist.Backend, "backend_list", [*dist.Backend.backend_list, "third"])
    monkeypatch.setattr(dist.Backend, "_plugins", registered)
    assert tool_facts(["torch:third"])["torch:third"] == {"devices": ["cpu"], "reason": None}


def test_other_cases_keep_their_ids_and_asynchronous_ones_are_labelled() -> None:
    (without,), (plain, apart) = planned(), planned(**{"async": [False, True]})
    assert without.case_id == plain.case_id != apart.case_id
    assert apart.label.split()[-1] == "async" and "async" not in plain.label.split()
    assert case_from_json(case_to_json(apart)) == apart
    assert case_from_json(case_to_json(plain)) == plain


@pytest.mark.parametrize("options", [
    {"backend": "mpi"}, {"backend": "mpi/direct"}, {"mode": "pipelined"},
    {"cache": "cold", "size": "1MiB"},
    {"backend": "nccl", "cuda_graph": True}])
def test_what_cannot_be_issued_apart_is_a_skip(options: dict[str, Any]) -> None:
    (case,) = planned(**options, **{"async": True})
    assert case.skip is not None and case.skip.startswith("async: ")
    (plain,) = planned(**options)
    assert plain.skip is None


@pytest.mark.parametrize("options", [
    {"mode": "barrier_start"}, {"groups": 2, "world_size": 2}, {"backend": "torch:gloo"},
    {"arrival": {"late": "last", "by": "250us"}}])
def test_what_can_be_issued_apart(options: dict[str, Any]) -> None:
    (case,) = planned(**options, **{"async": True})
    assert case.skip is None and case.workload.features.has_phases

"""Backends by torch's own names, and asynchronous calls: what the plan and the probe decide."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed as dist

from hpcbench.backends.availability import RankFacts, lacking, tool_facts, unavailable, wanted_tools
from hpcbench.config.axes import library_of
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.plan.support import needs, traits_of

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

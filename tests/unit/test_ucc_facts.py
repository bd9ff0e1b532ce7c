"""What the facts about UCC decide, and what comes of a child of the probe that ends."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, lacking, resolve_device, unavailable
from hpcbench.backends.child import Answers, Child
from hpcbench.config.load import check_config
from hpcbench.operations.collectives import collectives
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan

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

"""What the facts about UCC decide, and what the probe's child process tells of its own end."""

from __future__ import annotations

import dataclasses
import os
import signal
from typing import Any

import pytest

from hpcbench.backends.availability import RankFacts, lacking, resolve_device, unavailable
from hpcbench.config.load import check_config
from hpcbench.plan.case import Collective
from hpcbench.plan.expand import make_plan

WORKING = {"reason": None, "source": "torch_ucc", "layers": ["self", "ucp"], "lacks": {},
           "without_cuda": None, "versions": {"ucc": "1.10.0", "ucx": "1.22.0"}}
NO_GPU = {"available": False, "names": [], "uuids": [], "memory_bytes": [],
          "reason": "no GPU is visible"}
ONE_GPU = {"available": True, "names": ["A"], "uuids": ["u0"], "memory_bytes": [1],
           "reason": None}


def rank(number: int = 0, *, cuda: dict[str, Any] = NO_GPU, **ucc: Any) -> RankFacts:
    facts = {"ucc": {**WORKING, **ucc}, "cuda": cuda, "versions": {"torch": "2.13.0"}, "built": {}}
    return RankFacts(number, "n1", number, facts)


def work(**changes: Any) -> Collective:
    (case,) = make_plan(check_config(
        {"benchmarks": [{"kind": "collective", "collective": "all_reduce"}]}, "test"), 4).cases
    return dataclasses.replace(case.workload, **changes)


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
    assert lacking("ucc", "cpu", work(), [refusing]) is None
    assert (lacking("ucc/tl/ucp", "cpu", work(collective="all_gather", op=None), [refusing])
            == "torch_ucc has no all_gather that torch 2.13.0 can call: No backend")
    assert "has no avg that" in str(lacking("ucc", "cpu", work(op="avg"), [rank(), refusing]))
    assert lacking("gloo", "cpu", work(op="avg"), [refusing]) is None


def test_reductions_of_fp16_would_abort_the_process_on_the_host_only() -> None:
    assert "no reduction of fp16" in str(lacking("ucc", "cpu", work(dtype="fp16"), [rank()]))
    assert lacking("ucc", "cuda", work(dtype="fp16"), [rank()]) is None
    assert lacking("ucc", "cpu", work(dtype="bf16"), [rank()]) is None
    moved = work(dtype="fp16", collective="broadcast", op=None)
    assert lacking("ucc", "cpu", moved, [rank()]) is None


def test_sends_that_never_reach_the_layer_are_not_shown_as_its_own() -> None:
    ring = work(collective="send_recv", op=None)
    assert "with UCX, never" in str(lacking("ucc/tl/nccl", "cuda", ring, [rank()]))
    assert lacking("ucc/tl/nccl", "cuda", ring, [rank(source="torch")]) is None
    assert lacking("ucc/tl/ucp", "cpu", ring, [rank()]) is None


@pytest.mark.parametrize(("ending", "reason"), [
    (lambda: os.kill(os.getpid(), signal.SIGKILL), "ended by signal 9"),
    (lambda: os._exit(3), "ended with exit code 3"),
])
def test_a_probe_that_dies_is_a_reason_and_not_the_end(ending: Any, reason: str) -> None:
    pytest.importorskip("torch")
    from hpcbench.backends.ucc import _in_a_child

    assert _in_a_child(lambda: {"reason": None, "layers": ["ucp"]}) == {
        "reason": None, "layers": ["ucp"]}
    assert reason in _in_a_child(ending)["reason"]

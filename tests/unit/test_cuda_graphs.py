"""Calls in CUDA graphs: what the plan refuses, and the order in which a call is captured."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from hpcbench.backends.devices import WARM_UP_CALLS, captured
from hpcbench.config.load import check_config
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan

COLLECTIVE = {"kind": "collective", "collective": "all_reduce", "size": 64}
PRODUCT = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8}


def planned(block: dict[str, Any], **options: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [{**block, **options}]}, "test"), 2).cases


@pytest.mark.parametrize(("block", "words"), [
    ({**COLLECTIVE, "backend": "gloo"}, "holds work of a GPU, not of cpu"),
    ({**COLLECTIVE, "backend": "gloo", "device": "cuda"}, "not those of gloo"),
    ({**COLLECTIVE, "backend": "mpi", "device": "cuda"}, "not those of mpi"),
    ({**COLLECTIVE, "backend": "ucc"}, "not those of ucc"),
    ({**COLLECTIVE, "backend": "nccl"}, None),
    ({**COLLECTIVE, "backend": "nccl", "collective": "barrier"}, "makes the host wait"),
    ({**PRODUCT, "backend": "nccl", "implementations": "torch"}, None),
    ({**PRODUCT, "backend": "gloo", "device": "cuda", "implementations": "compute_only"}, None),
    ({**PRODUCT, "backend": "gloo", "device": "cuda", "implementations": "torch"},
     "not those of gloo"),
    ({**PRODUCT, "backend": "nccl", "implementations": "triton"}, "may start the product"),
    ({"kind": "training", "model": "gpt2", "strategies": "fsdp", "backend": "nccl"},
     "takes data from the host"),
])
def test_what_cannot_be_captured_is_a_skip(block: dict[str, Any], words: str | None) -> None:
    (case,) = planned(block, cuda_graph=True)
    assert case.cuda_graph and " cuda_graph" in case.label
    assert (case.skip is None) if words is None else words in str(case.skip), case.skip


def test_other_cases_keep_their_ids() -> None:
    without, (plain, graph) = planned(COLLECTIVE), planned(COLLECTIVE, cuda_graph=[False, True])
    assert without == (plain,) and graph.case_id != plain.case_id
    assert case_from_json(case_to_json(graph)) == graph


class Recorded:
    """Stands for an operation, the control group and CUDA; says what was done, in order."""

    name, place = "all_reduce", None

    def __init__(self) -> None:
        self.done: list[str] = []

    def __getattr__(self, name: str) -> Any:
        return lambda *_: self.done.append(name)

    @contextlib.contextmanager
    def inside(self, name: str) -> Iterator[None]:
        self.done.append(f"{name} {{")
        yield
        self.done.append("}")


def test_a_call_is_warmed_up_on_a_side_stream_captured_once_and_replayed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seen = Recorded()

    def stream(name: str) -> SimpleNamespace:
        return SimpleNamespace(wait_stream=lambda _: seen.done.append(f"{name} waits"))

    main, side = stream("main"), stream("side")
    cuda = {"current_stream": lambda: main, "Stream": lambda: side,
            "stream": lambda _: seen.inside("side"), "synchronize": lambda: seen.synchronize(),
            "CUDAGraph": lambda: SimpleNamespace(replay=lambda: seen.replay()),
            "graph": lambda _, capture_error_mode: seen.inside(f"capture {capture_error_mode}")}
    for name, stand_in in cuda.items():
        monkeypatch.setattr(torch.cuda, name, stand_in)
    replayed = captured(seen, seen)  # type: ignore[arg-type]
    assert seen.done == [
        "side waits", "side {", *["prepare", "run"] * WARM_UP_CALLS, "}", "main waits", "prepare",
        "synchronize", "barrier", "capture thread_local {", "run", "}", "synchronize", "barrier"]
    seen.done.clear()
    for call in (replayed.prepare, replayed.run, replayed.check, replayed.corrupt_output):
        call()
    assert seen.done == ["prepare", "replay", "check", "corrupt_output"]

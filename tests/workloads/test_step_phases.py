"""Phases and arrivals of the strategies, of ranks that communicate with nobody."""

from __future__ import annotations

from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.run.strategies.base import PhaseClock
from hpcbench.kinds.training.run.strategies.pipeline import StageClock
from hpcbench.plan.expand import make_plan
from hpcbench.trace.schema import ARRIVAL
from workloads.training_cases import stepped

SMALL: dict[str, Any] = {
    "kind": "training", "model": "gpt2", "layers": 4, "hidden": 64, "heads": 2, "vocab": 256,
    "seq_length": 16, "batch_size": 4, "accumulation": 1}
ARRIVALS: dict[str, tuple[dict[str, Any], int]] = {
    "data": ({"strategies": {"data": {"bucket_mb": 25}}, "world_size": 2}, 1),
    "zero1": ({"strategies": "zero1", "world_size": 2}, 1),
    "fsdp": ({"strategies": "fsdp", "world_size": 2, "accumulation": 2}, 5),
    "hsdp": ({"strategies": "hsdp", "world_size": 4}, 5),
    "lora over fsdp": ({"strategies": {"lora": {"over": "fsdp"}}, "world_size": 2}, 4),
    "tensor": ({"strategies": "tensor", "world_size": 2}, 0),
    "tensor, copies": ({"strategies": {"hybrid": {"tp": 2, "data": "replicate"}},
                        "world_size": 4}, 5),
    "tensor, shards": ({"strategies": {"hybrid": {"tp": 2, "data": "fsdp"}}, "world_size": 4}, 5),
    "pipeline": ({"strategies": "pipeline", "world_size": 2}, 0),
    "two pipelines": ({"strategies": {"hybrid": {"pp": 2, "data": "replicate"}},
                       "world_size": 4}, 1)}
"""Name -> a block, and how many buckets have a moment."""


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("name", list(ARRIVALS))
def test_every_strategy_has_its_phases_and_moments(name: str) -> None:
    block, count = ARRIVALS[name]
    plan = make_plan(check_config({"benchmarks": [SMALL | block]}, "test"), block["world_size"])
    with stepped(training_of(plan.cases[0]), steps=2) as operation:
        answer = operation.answer()
    steps = dict(zip(answer["phases"]["names"], answer["phases"]["ns"], strict=True))
    moments = {name: values for name, values in steps.items() if name.startswith(ARRIVAL)}
    assert list(moments) == [f"{ARRIVAL}{number + 1}" for number in range(count)]
    phases = [phase for phase in steps if phase not in moments]
    expected = ["data", "forward", "backward", "exchange", "optimizer"]
    assert phases == [phase for phase in expected if phase != "exchange" or name != "tensor"]
    assert all(value > 0 for phase in phases for value in steps[phase])
    ends = [sum(steps[phase][1] for phase in phases), *(one[1] for one in moments.values())]
    assert max(ends) == ends[0] and ends[1:] == sorted(ends[1:])


def test_what_lies_between_passes_is_exchange() -> None:
    times = iter(range(0, 1000, 10))
    phases, clock = PhaseClock(lambda: next(times)), StageClock(exchanges=True)
    assert clock.timed("forward", lambda: "before any step") == "before any step"
    clock.phases = phases
    phases.begin()  # 0
    for phase in ("forward", "backward", "backward"):
        assert clock.timed(phase, lambda: 7) == 7
    phases.end("exchange")
    phases.resolve()
    (step,) = phases.steps
    assert step == {"exchange": 60, "forward": 10, "backward": 20, f"{ARRIVAL}1": 80}

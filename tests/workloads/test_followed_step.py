"""What kind memory follows of a step is what torch's allocator gave, and what was predicted."""

from __future__ import annotations

import time
from typing import Any

import pytest
from torch.profiler import ProfilerActivity, profile

from hpcbench.config.load import check_config
from hpcbench.kinds.memory.plan import work_of
from hpcbench.kinds.memory.run import PARTS, followed
from hpcbench.kinds.training.plan.memory import ERROR
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy, phase_clock
from hpcbench.plan.expand import make_plan
from workloads.training_cases import stepped

BLOCK: dict[str, Any] = {
    "kind": "memory", "model": "gpt2", "layers": 4, "hidden": 64, "heads": 4, "vocab": 2048,
    "seq_length": 64, "batch_size": 4, "world_size": 2}
METHOD_ERROR = 0.005
"""By what share the followed peak may differ from the allocator's (docs/training.md)."""


def works(**block: Any) -> list[Training]:
    config = check_config({"benchmarks": [BLOCK | block]}, "test")
    return [work_of(case).training for case in make_plan(config, 2).cases]


def allocated(spec: Training, strategy: Strategy, batch: Batch) -> int:
    """Take a step; return by how much the allocator's bytes grew at most, as it told itself."""
    phases = phase_clock(strategy.place.device, time.perf_counter_ns)
    phases.begin()
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        strategy.forward_backward(batch, phases)
        strategy.update(phases)
    now = most = 0
    for event in profiled.profiler.kineto_results.events():
        if event.name() == "[memory]":
            now += event.nbytes()
            most = max(most, now)
    return most


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("work", works(
    strategies=["single", "fsdp"], dtype=["fp32", "bf16"], checkpointing=["none", "full"]),
    ids=lambda work: f"{work.strategy}-{work.dtype}-{work.checkpointing}")
def test_the_followed_peak_is_the_allocator_s(work: Training) -> None:
    with stepped(work) as operation:
        held = operation._strategy.held()
        found = operation.one_more(followed)
        peak = held["parameters"] + held["optimizer_state"] + operation.one_more(allocated)
    assert tuple(found) == PARTS
    assert all(found[name] == held[name] for name in ("parameters", "optimizer_state"))
    assert sum(found.values()) == pytest.approx(peak, rel=METHOD_ERROR)
    assert sum(found.values()) == pytest.approx(predict(work).memory.total, rel=ERROR)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_buckets_count_though_a_step_begins_without_a_check_of_them() -> None:
    work = works(strategies="data")[0]
    with stepped(work) as operation:
        held, found = operation._strategy.held(), operation.one_more(followed)
    assert found["temporary"] >= held["gradients"]
    assert sum(found.values()) == pytest.approx(predict(work).memory.total, rel=ERROR)


@pytest.mark.filterwarnings("ignore:.torch.jit")
def test_gradients_are_not_taken_for_what_the_optimizer_works_on() -> None:
    """A model that is mostly weights has its peak there; the CPU updates one after another."""
    work = works(strategies="single", vocab=256, hidden=256, seq_length=8)[0]
    with stepped(work) as operation:
        held, found = operation._strategy.held(), operation.one_more(followed)
    assert found["gradients"] == held["gradients"]
    assert 0 < found["temporary"] < held["gradients"]
    assert found["activations"] < 0.01 * held["parameters"]

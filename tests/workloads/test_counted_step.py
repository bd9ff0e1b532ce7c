"""What is counted of real steps is what was predicted, of each strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from hpcbench.config.load import check_config
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.step import stages_of
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.kinds.training.run.runner import TrainingOperation, count_step
from hpcbench.operations.place import Place
from hpcbench.plan.expand import make_plan
from workloads.training_cases import alone, stepped, training

SMALL: dict[str, Any] = {
    "kind": "training", "model": "gpt2", "layers": 4, "hidden": 64, "heads": 2, "vocab": 256,
    "seq_length": 16, "batch_size": 4, "world_size": 2}
STRATEGIES: list[dict[str, Any]] = [
    {"strategies": {"data": {"bucket_mb": 1, "comm_hook": ["none", "bf16"]}}},
    {"strategies": {"data": {"balance": "dynamic"}}},
    {"strategies": "zero1"},
    {"strategies": {"fsdp": {"reshard": [True, False]}}, "dtype": "bf16", "accumulation": 2},
    {"strategies": {"tensor": {"sequence_parallel": [False, True]}}, "dtype": ["fp32", "fp16"]},
    {"strategies": {"pipeline": {"schedule": ["1F1B", "ZBVZeroBubble"]}}},
    {"strategies": "model", "accumulation": 2},
    {"strategies": {"lora": {"over": ["data", "fsdp"]}}, "checkpointing": "full"},
]


def works(common: dict[str, Any] = SMALL, blocks: Sequence[dict[str, Any]] = STRATEGIES,
          ranks: int = 2) -> list[Training]:
    config = {"benchmarks": [common | more for more in blocks]}
    cases = make_plan(check_config(config, "test"), ranks).cases
    assert not [case.skip for case in cases if case.skip]
    return [training_of(case) for case in cases]


def predicted(work: Training, rank: int) -> tuple[dict[str, list[int]], int]:
    expected = predict_stage(work, stages_of(work)[rank // work.tp % work.pp])
    return {one.collective: [one.count, one.size_bytes, one.wire_bytes]
            for one in expected.calls}, expected.hardware_flops


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.parametrize("work", works(), ids=lambda work: work.strategy)
def test_calls_bytes_and_flops_are_those_that_were_predicted(work: Training) -> None:
    for rank in (0,) if work.pp == 1 and work.strategy != "zero1" else (0, 1):  # else all alike
        with stepped(work, rank) as operation:
            counted = count_step(work, operation._strategy, operation._loader.batch(1, 0, 4))
        calls, flops = predicted(work, rank)
        assert counted["calls"] == calls
        assert counted["flops"] == flops
        assert counted["activations"] > 0


def test_activations_are_what_a_replica_keeps() -> None:
    for checkpointing in ("none", "full"):
        work = training("single", checkpointing=checkpointing, sizes={
            "layers": 4, "hidden": 128, "seq_length": 128, "vocab": 2000})
        (stage,) = stages_of(work)
        with alone() as place:
            memory = answer_of(work, place)["memory"]
        assert memory["activations_of"].startswith("results of operations, but for copies")
        assert memory["activations"] == pytest.approx(
            predict_stage(work, stage).memory.activations, rel=0.02)


def test_counting_leaves_no_step_and_can_be_left_out() -> None:
    work = training("single")
    with alone() as place:
        answer = answer_of(work, place)
        assert len(answer["phases"]["ns"][0]) == 2
        assert answer["counted"]["missing"] == {} and answer["counted"]["calls"] == {}
        answer = answer_of(replace(work, count_step=False), place)
        assert "counted" not in answer and "activations" not in answer["memory"]


def test_what_cannot_be_counted_has_a_reason() -> None:
    with alone() as place:
        hidden = answer_of(training("data", {"comm_hook": "powersgd"}), place)["counted"]
        silent = answer_of(training("single", communication="off"), place)["counted"]
    assert silent["missing"] == {"calls": "its groups move nothing"}
    assert list(hidden["missing"]) == ["calls"] and "PowerSGD" in hidden["missing"]["calls"]


def answer_of(work: Training, place: Place) -> dict[str, Any]:
    """Return what an operation tells after two steps."""
    operation = TrainingOperation(work, place, validate=False)
    for _ in range(2):
        operation.prepare()
        operation.run()
    answer = operation.answer()
    operation.close()
    return answer

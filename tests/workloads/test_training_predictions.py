"""What is predicted of a training step is what torch calls, holds and keeps, in one process."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.distributed as dist

from hpcbench.backends.rehearsal import Tally, open_rehearsal
from hpcbench.config.load import check_config
from hpcbench.plan.case import Training
from hpcbench.plan.expand import make_plan
from hpcbench.plan.training.activations import (
    Kept,
    block_bytes,
    embedding_bytes,
    head_bytes,
    recomputed_bytes,
)
from hpcbench.plan.training.models import ModelShape, shrink
from hpcbench.plan.training.predict import predict_stage, stages_of
from hpcbench.plan.training.strategies import STRATEGIES
from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.training.models.transformer import Transformer, token_loss
from hpcbench.workloads.training.operation import TrainingOperation

SMALL: dict[str, Any] = {"kind": "training", "hidden": 192, "vocab": 255, "seq_length": 16,
                         "batch_size": 4}
OPTIONS: dict[str, list[dict[str, Any]]] = {
    "data": [{"bucket_mb": 1, "comm_hook": ["none", "bf16", "powersgd"]}, {"bucket_view": True}],
    "zero1": [{}], "fsdp": [{"reshard": [True, False]}], "hsdp": [{}],
}
"""Of strategies whose options change what is called; others are tried with their defaults."""


@pytest.fixture
def _left() -> Iterator[None]:
    yield
    if dist.is_initialized():
        dist.destroy_process_group()


def works(strategy: str, **more: Any) -> list[Training]:
    sets = OPTIONS.get(strategy, [{}])
    block = SMALL | {"layers": 3, "model": ["gpt2", "mistral-7b", "bert-large"],
                     "strategies": {strategy: sets}} | more
    ranks = 1 if strategy == "single" else 8
    cases = make_plan(check_config({"benchmarks": [block]}, "test"), ranks).cases
    assert not [case.skip for case in cases if case.skip]
    return [case.training for case in cases]


def rehearsed(work: Training) -> tuple[dict[str, tuple[int, int]], dict[str, Any]]:
    """Return collective -> (calls, bytes) of a step of rank 0, and what it tells of its memory."""
    tally: Tally = {}
    ranks = work.dp * work.tp * work.pp
    world = open_rehearsal(ranks, tally)
    operation = TrainingOperation(work, Place(0, ranks, world, torch.device("cpu")),
                                  validate=False)
    operation.prepare()
    tally.clear()
    operation.run()
    called = {name: (len(sizes), sum(sizes)) for name, sizes in tally.items()}
    told = operation.answer()["memory"]
    operation.close()
    return called, told


@pytest.mark.filterwarnings("ignore:FSDP2-wrapped module", "ignore:.torch.jit")
@pytest.mark.usefixtures("_left")
@pytest.mark.parametrize("accumulation", [1, 2])
@pytest.mark.parametrize("strategy", [spec.name for spec in STRATEGIES])
def test_calls_and_what_is_held(strategy: str, accumulation: int) -> None:
    models = {} if accumulation == 1 else {"model": "gpt2"}
    for work in works(strategy, accumulation=accumulation, **models):
        expected = predict_stage(work, stages_of(work)[0])
        called, told = rehearsed(work)
        assert called == {one.collective: (one.count, one.size_bytes)
                          for one in expected.calls}, work
        memory = expected.memory
        assert (told["parameters"], told["gradients"]) == (memory.parameters, memory.gradients)
        assert told["optimizer_state"] == pytest.approx(memory.optimizer, rel=1e-4)


def kept_bytes(shape: ModelShape, dtype: torch.dtype | None, checkpointing: str) -> int:
    """Return the bytes of what a forward pass of 2 samples leaves for backward, but for weights."""
    model = Transformer(shape, None, checkpointing)
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    widths = {tuple(parameter.shape) for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        copied = {tuple(tensor.shape), tuple(tensor.t().shape)} if tensor.dim() == 2 else set()
        if storage.data_ptr() not in weights and not copied & widths:
            found[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros((2, shape.seq_length), dtype=torch.int64)
    mixed = torch.autocast("cpu", dtype=dtype) if dtype else nullcontext()
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        token_loss(model(tokens), tokens)
    return sum(storage.nbytes() for storage in found.values())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
@pytest.mark.parametrize("model", ["gpt2", "mistral-7b", "bert-large"])
def test_what_a_forward_pass_keeps(model: str, dtype: torch.dtype | None) -> None:
    kept = Kept(2, 4, copies=True) if dtype else Kept()
    small, large = (shrink(model, layers=layers, hidden=192, seq_length=40, vocab=255)
                    for layers in (1, 3))
    assert isinstance(small, ModelShape)
    assert isinstance(large, ModelShape)
    tokens = 2 * 40
    for checkpointing, of_block in (("none", block_bytes(small, kept)),
                                    ("full", recomputed_bytes(small, kept))):
        one = kept_bytes(small, dtype, checkpointing)
        assert kept_bytes(large, dtype, checkpointing) - one == 2 * tokens * of_block
        ends = embedding_bytes(small, kept) + head_bytes(small, kept)
        assert one - tokens * of_block == pytest.approx(tokens * ends, rel=0.15)

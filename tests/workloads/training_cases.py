"""Trainings of a model that is small enough for tests, and a group of one rank to run them on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.counting_backend import CallLog, open_counting_world
from hpcbench.kinds.training.plan.any_model import differences, extents_of, shape_with
from hpcbench.kinds.training.plan.build_workload import counted
from hpcbench.kinds.training.plan.spec import Degrees, strategy
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.model import Model, mean_loss
from hpcbench.kinds.training.run.runner import TrainingOperation
from hpcbench.operations.place import Place
from hpcbench.plan.points import in_order

IMAGES: dict[str, Any] = {"layers": 4, "width": 8, "classes": 10, "image_size": 32}
SIZES: dict[str, Any] = {"layers": 2, "hidden": 64, "seq_length": 16, "vocab": 96}


def training(name: str, options: dict[str, Any] | None = None, *, model: str = "transformer-tiny",
             sizes: dict[str, Any] = SIZES, degrees: Degrees | None = None,
             **changes: Any) -> Training:
    """Return a training with a strategy's default options and these."""
    spec, shape = strategy(name), shape_with(model, **sizes)
    assert not isinstance(shape, str)
    chosen = {key: values.default for key, values in spec.options.items()} | (options or {})
    degrees = degrees or Degrees()
    given: dict[str, Any] = {
        "dtype": "fp32", "batch_size": 4, "accumulation": 1, "optimizer": "adamw",
        "checkpointing": "none", **changes}
    extents: dict[str, Any] = extents_of(shape)
    return counted(Training(
        strategy=name, options=in_order(spec.without_idle(chosen)), model=model,
        **differences(model, extents), **extents, dp=degrees.dp, tp=degrees.tp, pp=degrees.pp,
        cp=degrees.cp, parameters=0, flops=(), calls=(), **given))


@contextmanager
def alone() -> Iterator[Place]:
    """Make this process the only rank of a gloo group.

    PowerSGD's callbacks hold the group until gloo's thread gets the GIL to release them. If nothing
    else held it by then, that thread would destroy the group, wait for its own end, and abort.
    """
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    place = Place(0, 1, dist.group.WORLD, torch.device("cpu"))
    try:
        yield place
    finally:
        dist.destroy_process_group()
        time.sleep(0.1)


@contextmanager
def counting_place(work: Training, rank: int = 0, log: CallLog | None = None) -> Iterator[Place]:
    """Give a rank's place in a world of a training's ranks that moves nothing, and end it."""
    world = open_counting_world(work.ranks, log or CallLog(counts=False), rank)
    try:
        yield Place(rank, work.ranks, world, torch.device("cpu"))
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def stepped(
    work: Training, rank: int = 0, log: CallLog | None = None, steps: int = 1,
) -> Iterator[TrainingOperation]:
    """Open a training as that rank and take steps; ``log`` has the calls of the last one."""
    with counting_place(work, rank, log) as place:
        operation = TrainingOperation(work, place, validate=False)
        for _ in range(steps):
            operation.prepare()
            if log is not None:
                log.tally.clear()
            operation.run()
        yield operation
        operation.close()


def saved_bytes(model: Model, arithmetic: str) -> int:
    """Return the bytes of what a forward pass of 2 samples leaves for backward, but for weights.

    ``arithmetic`` is ``autocast``, or what the model is already in.
    """
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    widths = {tuple(parameter.shape) for parameter in model.parameters()}
    found: dict[int, torch.UntypedStorage] = {}

    def keep(tensor: torch.Tensor) -> torch.Tensor:
        storage = tensor.untyped_storage()
        copied = {tuple(tensor.shape), tuple(tensor.t().shape)} if tensor.dim() == 2 else set()
        if storage.data_ptr() not in weights and not copied & widths:
            found[storage.data_ptr()] = storage
        return tensor

    tokens = torch.zeros((2, model.shape.seq_length), dtype=torch.int64)
    mixed = (torch.autocast("cpu", dtype=torch.bfloat16) if arithmetic == "autocast" else
             nullcontext())
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor), mixed:
        mean_loss(model(tokens), tokens)
    return sum(storage.nbytes() for storage in found.values())

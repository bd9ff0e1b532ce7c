"""A model, or a stage of one, built part by part: no rank ever has all of it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.kinds.training.run.models.model import Model, Part
from hpcbench.kinds.training.run.optimizers import make_optimizer

Treatment = Callable[[nn.Module], object]
"""What is done to a part of a model that has its weights."""
Fill = Callable[[Model, Part], object]
"""What gives a part of a draft memory and its weights of the seed."""


def build(
    draft: Model, device: torch.device, fill: Fill, divide: Treatment, shard: Treatment,
) -> Model:
    """Return a model, or a stage of one, that had no memory, on the device with its weights.

    ``divide`` is done to each block and to what is before and behind them; ``shard`` then to each
    block, and at the end to the model.
    """
    for part in draft.parts():
        fill(draft, part)
        divide(part.module)
        if part.number is not None:
            shard(part.module)
    draft.complete(device)
    shard(draft)
    return draft


def as_it_is(part: nn.Module) -> None:
    """Leave a part, or a model, as it is."""


def grouped_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer whose groups hold parameters of one mesh each.

    torch updates the parameters of a group together where it can. It cannot where some are DTensors
    and some are not, or where their meshes differ.
    """
    groups: dict[object, list[nn.Parameter]] = {}
    for parameter in parameters:
        mesh = parameter.device_mesh if isinstance(parameter, DTensor) else None
        groups.setdefault(mesh, []).append(parameter)
    return make_optimizer(name, [{"params": group} for group in groups.values()])


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Lay gradients out as their parameters are, once all of them are there.

    The gradient of a norm's weight is a sum over ranks that each saw some of the tokens: left as
    it is, the optimizer would add it up again in each of its operations. That of an embedding may
    be whole where its weight is divided.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)

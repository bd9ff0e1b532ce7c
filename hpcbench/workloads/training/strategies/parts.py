"""A model, or a stage of one, built part by part: no rank ever has all of it whole."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.plan.workload import Training
from hpcbench.workloads.training.data import SEED
from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.models.make import make_model
from hpcbench.workloads.training.models.weights import initial
from hpcbench.workloads.training.optimizers import make_optimizer

Treatment = Callable[[nn.Module], object]
"""What is done to a part of a model that has its weights."""


def build(
    spec: Training, device: torch.device, blocks: range | None, divide: Treatment,
    shard: Treatment,
) -> Model:
    """Return the model, or the stage with these blocks, on the device with the seed's weights.

    ``divide`` is done to each block and to what else there is; ``shard`` then to each block, and
    at the end to the model.
    """
    with torch.device("meta"):
        model = make_model(spec, blocks)
    of_blocks = model.blocks_by_name()
    for prefix, part in model.parts():
        part.to_empty(device=device)
        with torch.no_grad():
            for name, parameter in part.named_parameters():
                parameter.copy_(initial(model.shape, prefix + name, parameter.shape, SEED))
        divide(part)
        if prefix in of_blocks:
            shard(part)
    model.complete()
    shard(model)
    return model


def whole_part(part: nn.Module) -> None:
    """Leave a part as it is."""


def grouped_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer whose groups hold parameters of one mesh each.

    torch updates the parameters of a group together where it can, and cannot where some are
    DTensors and some are not, or are of another mesh.
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

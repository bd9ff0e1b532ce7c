"""The model of a training and its loss, of either kind, built as the training is configured."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from hpcbench.kinds.training.plan.any_model import model_of
from hpcbench.kinds.training.plan.resnet import ResNetShape
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.alteration import alter, compiled
from hpcbench.kinds.training.run.models.model import Model, Part, mean_loss
from hpcbench.kinds.training.run.models.resnet import ResNet
from hpcbench.kinds.training.run.models.transformer import Transformer
from hpcbench.operations.models import OWN_LIBRARY

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
Treatment = Callable[[nn.Module], object]
"""What is done to a part of a model that has its weights."""
Fill = Callable[[Model, Part], object]
"""What gives a part of a draft memory and its weights of the seed."""


def make_model(work: Training, blocks: range | None = None) -> Model:
    """Return the model of a training, or the stage of it that has ``blocks``; weights are not set.

    Only ours have stages.
    """
    model = _as_written(work, blocks)
    alter({part.number: part.module for part in model.parts() if part.number is not None},
          work.checkpointing, work.compile)
    return model


def make_loss(work: Training) -> Loss:
    """Return what computes the loss of logits and targets, compiled if blocks are.

    Not where ranks have parts of the logits or gather them: torch compiles no graph that begins
    with a tensor that is still being communicated.
    """
    return compiled(mean_loss) if work.compile and work.tp == 1 else mean_loss


def _as_written(work: Training, blocks: range | None) -> Model:
    shape = model_of(work)
    if isinstance(shape, ResNetShape):
        return ResNet(shape, blocks)
    if work.library == OWN_LIBRARY:
        return Transformer(shape, blocks)
    # Importing the library takes seconds, and not everyone has it.
    from hpcbench.kinds.training.run.models.library import LibraryModel

    return LibraryModel(shape, work.model)


def _as_it_is(part: nn.Module) -> None:
    """Leave a part, or a model, as it is."""


def build(
    draft: Model, device: torch.device, fill: Fill, divide: Treatment = _as_it_is,
    shard: Treatment = _as_it_is,
) -> Model:
    """Return a model, or a stage of one, that had no memory, on the device with its weights.

    It is built part by part: no rank ever has all of it whole.

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

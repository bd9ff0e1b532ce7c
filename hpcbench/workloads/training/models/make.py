"""The model of a training: ours, or that of another library."""

from __future__ import annotations

from collections.abc import Callable

import torch

from hpcbench.config.names import OWN_LIBRARY
from hpcbench.plan.training.models import shape_of
from hpcbench.plan.workload import Training
from hpcbench.workloads.training.models.alteration import compiled
from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.models.transformer import Transformer, token_loss

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


def make_loss(spec: Training) -> Loss:
    """Return what computes the loss of logits and targets, compiled if blocks are.

    Not where ranks have parts of the logits or gather them: torch compiles no graph that begins
    with a tensor that is still being communicated.
    """
    return compiled(token_loss) if spec.compile and spec.tp == 1 else token_loss


def make_model(spec: Training, blocks: range | None = None) -> Model:
    """Return the model, or the stage of ours that has these blocks, with any weights."""
    if spec.library == OWN_LIBRARY:
        return Transformer(shape_of(spec), blocks, spec.checkpointing, spec.compile)
    # Importing the library takes seconds, and not everyone has it.
    from hpcbench.workloads.training.models.library import LibraryModel

    return LibraryModel(shape_of(spec), spec.model, spec.checkpointing, spec.compile)

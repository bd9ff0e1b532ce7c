"""The model of a training, of whichever kind it is."""

from __future__ import annotations

from hpcbench.plan.training.any_model import model_of
from hpcbench.plan.training.resnet import ResNetShape
from hpcbench.plan.workload import Training
from hpcbench.workloads.training.models.model import Model
from hpcbench.workloads.training.models.resnet import ResNet
from hpcbench.workloads.training.models.transformer import Transformer


def make_model(work: Training, blocks: range | None = None) -> Model:
    """Return the model of a training, or the stage of it that has ``blocks``; weights are not set.
    """
    shape = model_of(work)
    if isinstance(shape, ResNetShape):
        return ResNet(shape, blocks)
    return Transformer(shape, blocks, work.checkpointing)

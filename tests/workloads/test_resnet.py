from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from hpcbench.kinds.training.plan.any_model import (
    RESNETS,
    ResNetShape,
    bottlenecks,
    resnet_parameters,
    stage_flops,
)
from hpcbench.kinds.training.run.models.model import ResNet, init_weights

SMALL = ResNetShape((1, 2, 1, 1), 8, 10, 36)
RESNET50 = RESNETS["resnet50"]


def made(blocks: range | None = None) -> ResNet:
    model = ResNet(SMALL, blocks)
    init_weights(model, 3)
    return model.double()


def images(shape: ResNetShape, samples: int = 2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(samples, 3, shape.image, shape.image, dtype=torch.float64,
                       generator=generator)


def test_resnet50_is_as_published() -> None:
    """torchvision's resnet50: 25,557,032 parameters, 4.09 billion multiplications in forward."""
    assert resnet_parameters(RESNET50) == 25_557_032
    stem = 112**2 * 64 * 3 * 49
    assert (stage_flops(RESNET50, range(RESNET50.layers), 1) // 2 + stem) / 3 == 4_089_184_256


@pytest.mark.parametrize("shape", [RESNET50, SMALL, ResNetShape((3, 4, 6, 3), 64, 1000, 97)])
def test_a_model_has_the_parameters_and_flops_that_the_plan_states(shape: ResNetShape) -> None:
    with torch.device("meta"):
        model = ResNet(shape)
        batch = torch.zeros(2, 3, shape.image, shape.image)
        labels = torch.zeros(2, dtype=torch.long)
    with FlopCounterMode(display=False) as counter:
        F.cross_entropy(model(batch), labels).backward()
    assert sum(item.numel() for item in model.parameters()) == resnet_parameters(shape)
    assert counter.get_total_flops() == stage_flops(shape, range(shape.layers), 2)


def test_stages_one_after_the_other_are_the_whole_model() -> None:
    blocks = len(bottlenecks(SMALL))
    x = batch = images(SMALL)
    for stage in (made(range(0, 1)), made(range(1, 3)), made(range(3, blocks))):
        x = stage(x)
    assert torch.equal(x, made()(batch))


def test_every_parameter_takes_part_in_the_loss() -> None:
    wide = replace(SMALL, width=24)  # narrow ones pass all, and norms hide biases
    model = ResNet(wide)
    init_weights(model, 3)
    F.cross_entropy(model.double()(images(wide, 4)), torch.arange(4)).backward()
    assert all(float(item.grad.abs().max()) > 1e-9 for item in model.parameters())

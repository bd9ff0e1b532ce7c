"""The ResNet that is trained: whole, or the part of it that one pipeline stage has."""

from __future__ import annotations

import math

import torch
from torch import nn
from torch.nn import functional as F

from hpcbench.kinds.training.plan.resnet import (
    COLOURS,
    STEM_KERNEL,
    Bottleneck,
    ResNetShape,
    bottlenecks,
    features,
)
from hpcbench.kinds.training.run.models.model import Model, drawn

NARROW_BIAS = 3.0
"""Biases of norms in narrow models begin about it: one value in a thousand is below 0."""

MOMENTUM = 0.1
"""Of running statistics: the share that a batch's have in them. torch's default."""


class BatchNorm(nn.BatchNorm2d):  # type: ignore[misc]
    """torch's batch norm, with its weights cast to the dtype of the running statistics.

    Some strategies cast the parameters of a block to bf16 and leave the statistics in fp32. torch
    takes either both in fp32 or both in the input's dtype.
    """

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, channels, height, width) of the same."""
        self.num_batches_tracked.add_(1)
        wide = self.running_mean.dtype
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight.to(wide),
                            self.bias.to(wide), True, self.momentum, self.eps)


class Stem(nn.Module):  # type: ignore[misc]
    """Convolution and pooling of images: each halves height and width."""

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        self.convolution = nn.Conv2d(COLOURS, shape.width, STEM_KERNEL, stride=2,
                                     padding=STEM_KERNEL // 2, bias=False)
        self.norm = BatchNorm(shape.width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return (samples, width, image / 4, image / 4) of (samples, 3, image, image)."""
        return F.max_pool2d(F.relu(self.norm(self.convolution(images))), 3, stride=2, padding=1)


class Block(nn.Module):  # type: ignore[misc]
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, added to the input or to a projection of it."""

    def __init__(self, block: Bottleneck) -> None:
        super().__init__()
        inner, outputs, stride = block.inner, block.outputs, block.stride
        self.narrow = nn.Conv2d(block.inputs, inner, 1, bias=False)
        self.narrow_norm = BatchNorm(inner)
        self.middle = nn.Conv2d(inner, inner, 3, stride=stride, padding=1, bias=False)
        self.middle_norm = BatchNorm(inner)
        self.wide = nn.Conv2d(inner, outputs, 1, bias=False)
        self.wide_norm = BatchNorm(outputs)
        self.projection = (nn.Conv2d(block.inputs, outputs, 1, stride=stride, bias=False)
                           if block.projected else None)
        self.projection_norm = BatchNorm(outputs) if block.projected else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return (samples, outputs, height / stride, width / stride)."""
        y = F.relu(self.narrow_norm(self.narrow(x)))
        y = F.relu(self.middle_norm(self.middle(y)))
        y = self.wide_norm(self.wide(y))
        if self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x))
        return F.relu(x + y)


class Head(nn.Module):  # type: ignore[misc]
    """The mean over height and width, and the logits."""

    def __init__(self, shape: ResNetShape) -> None:
        super().__init__()
        self.logits = nn.Linear(features(shape), shape.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits (samples, classes)."""
        return self.logits(x.mean(dim=(2, 3)))


class ResNet(Model):
    """A model, or the stage of it that has ``blocks``, numbered as in the whole model.

    The stage with block 0 takes images (samples, 3, image, image), the one with the last block
    returns logits (samples, classes). Children are ``stem``, ``blocks`` (a ModuleDict by the
    block's number) and ``head``; what a stage lacks is None. Batch norms see the samples of their
    own rank only.
    """

    def __init__(self, shape: ResNetShape, blocks: range | None = None) -> None:
        super().__init__()
        every = bottlenecks(shape)
        blocks = range(len(every)) if blocks is None else blocks
        self.shape = shape
        self.stem = Stem(shape) if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({str(number): Block(every[number]) for number in blocks})
        self.head = Head(shape) if blocks.stop == len(every) else None

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        """Return the first value of a whole parameter: see `Model.initial`.

        Weights are normal with a variance of 2 / fan-in, He et al., arXiv:1502.01852
        (2015); biases and norms are random, too, about 0 and 1, in narrow models see
        `NARROW_BIAS`.
        """
        fan_in = math.prod(extents[1:]) if len(extents) > 1 else 0
        value = drawn(name, extents, (2 / fan_in) ** 0.5 if fan_in else 0.02, seed,
                      device)
        lifted = self.shape.is_narrow and name.endswith("norm.bias")
        return value + NARROW_BIAS if lifted else value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return logits or activations of images or activations: see the class."""
        if self.stem is not None:
            x = self.stem(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)


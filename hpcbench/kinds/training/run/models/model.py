"""The interface of models to strategies, weights to begin with, and the ResNet.

Weights are random numbers that follow from a seed and a parameter's name alone. On a CPU torch
draws them. Its GPU generators differ from GPU to GPU, and one core takes minutes for 8 billion
weights: so on a GPU every element is a function of its place, in whole numbers, equal on all ranks
and in the reference."""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from hpcbench.kinds.training.plan import any_model

ON_DEVICE = frozenset({"cuda"})  # devices that draw for themselves
_PIECE = 2**22  # elements drawn at a time: they need some 40 bytes each meanwhile
_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
"""SplitMix64: Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, OOPSLA 2014,
with the constants of Vigna's splitmix64.c."""
_SIXTEEN = 2**16


def drawn(
    name: str, extents: tuple[int, ...], deviation: float, seed: int, device: torch.device,
) -> torch.Tensor:
    """Return normal fp32 numbers by seed and name (of norms about 1), on ``device`` if it draws."""
    mean = 1.0 if len(extents) == 1 and name.endswith(".weight") else 0.0
    key = int.from_bytes(hashlib.sha256(f"{seed} {name}".encode()).digest()[:8], "little")
    if device.type in ON_DEVICE:
        return counted_normals(key, math.prod(extents), device).mul_(deviation).add_(mean).view(
            extents)
    generator = torch.Generator().manual_seed(key)
    return torch.empty(extents).normal_(mean, deviation, generator=generator)


def counted_normals(key: int, count: int, device: torch.device) -> torch.Tensor:
    """Return (count,) nearly normal numbers of mean 0 and deviation 1, fp32.

    Each is the sum of the four 16-bit parts of a hash of its place, within 3.5 deviations: the same
    on every device."""
    drawn = torch.empty(count, device=device)
    for first in range(0, count, _PIECE):
        piece = drawn[first:first + _PIECE]
        piece.copy_(_sums(key, first, len(piece), device))
    deviation = math.sqrt(4 * (_SIXTEEN**2 - 1) / 12)
    return drawn.mul_(1 / deviation)


def _sums(key: int, first: int, count: int, device: torch.device) -> torch.Tensor:
    """Return (count,) sums of four uniform whole numbers, less their mean, from place ``first``."""
    z = torch.arange(first + 1, first + count + 1, device=device)
    z.mul_(_signed(_GAMMA)).add_(_signed(key))
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        z.bitwise_xor_(_shifted(z, shift)).mul_(_signed(factor))
    z.bitwise_xor_(_shifted(z, 31))
    total = z & (_SIXTEEN - 1)
    for place in (16, 32, 48):
        total += (z >> place) & (_SIXTEEN - 1)
    return total - 2 * (_SIXTEEN - 1)


def _shifted(z: torch.Tensor, places: int) -> torch.Tensor:
    """Return 64 bits shifted right, filled up with zeros; torch's shift repeats the sign."""
    return (z >> places) & (2 ** (64 - places) - 1)


def _signed(bits: int) -> int:
    bits %= 2**64
    return bits - 2**64 if bits >= 2**63 else bits


_DEVIATION = 0.02  # of a transformer's weights at the start


class Part(NamedTuple):
    """A part of a model that is built and spread on its own; ``number`` is that of a block, or
    None."""

    prefix: str
    module: nn.Module
    number: int | None


class Model(nn.Module):  # type: ignore[misc]
    """A model, or a stage of one: the part before the blocks, the blocks, and the part behind.

    Ours have ``blocks``, a ModuleDict by number; a part that a stage lacks is None."""

    blocks: nn.ModuleDict

    def parts(self) -> Iterator[Part]:
        """Yield the parts in order; they hold all parameters."""
        for name, child in self.named_children():
            if child is self.blocks:
                yield from (Part(f"blocks.{number}.", block, int(number))
                            for number, block in child.items())
            else:
                yield Part(f"{name}.", child, None)

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        """Return the first value of a whole parameter, fp32, drawn for a training on ``device``."""
        raise NotImplementedError

    def complete(self, device: torch.device) -> None:
        """Share tied weights and make tables, once parameters were replaced on the device."""


def init_weights(
    model: Model, seed: int, part: Part | None = None, device: torch.device | None = None,
) -> None:
    """Set every parameter, or those of a part, from the seed and its name, drawn in fp32 one at a
    time."""
    prefix, module, _ = part or Part("", model, None)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(model.initial(
                prefix + name, parameter.shape, seed, device or parameter.device))


def fill_part(model: Model, part: Part, device: torch.device, seed: int) -> None:
    for module in part.module.modules():
        # not to_empty, which cannot replace parameters by fake tensors
        for name, value in module.named_parameters(recurse=False):
            setattr(module, name, nn.Parameter(torch.empty_like(value, device=device)))
        for name, value in module.named_buffers(recurse=False):
            setattr(module, name, torch.empty_like(value, device=device))
        if isinstance(module, nn.BatchNorm2d):
            module.reset_running_stats()
    init_weights(model, seed, part)


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean cross entropy, at least fp32, of classes (samples,) or tokens (samples,
    tokens).

    For BERT, too, each token counts, so that the work is the same in every step."""
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten())


def of_transformer(
    name: str, extents: tuple[int, ...], seed: int, device: torch.device, layers: int,
    into_residual: re.Pattern[str],
) -> torch.Tensor:
    """Return the first value of a whole parameter of a transformer: see `Model.initial`.

    As GPT-2: normal of deviation 0.02, divided by the root of the number of additions to the
    residual. Other than there biases and norms are random, too: a layout that adds a bias twice has
    another loss immediately."""
    additions = 2 * layers if into_residual.fullmatch(name) else 1
    return drawn(name, extents, _DEVIATION / math.sqrt(additions), seed, device)


NARROW_BIAS = 3.0
"""Biases of norms in narrow models begin about it: one value in a thousand is below 0."""

MOMENTUM = 0.1  # of running statistics: the share that a batch's have in them. torch's default


class BatchNorm(nn.BatchNorm2d):  # type: ignore[misc]
    """torch's batch norm, with its weights cast to the dtype of the running statistics.

    Strategies may cast parameters to bf16 and leave statistics in fp32, which torch refuses."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.num_batches_tracked.add_(1)
        wide = self.running_mean.dtype
        return F.batch_norm(x, self.running_mean, self.running_var, self.weight.to(wide),
                            self.bias.to(wide), True, self.momentum, self.eps)


class Stem(nn.Module):  # type: ignore[misc]
    """Convolution and pooling of images: each halves height and width."""

    def __init__(self, shape: any_model.ResNetShape) -> None:
        super().__init__()
        kernel = any_model.STEM_KERNEL
        self.convolution = nn.Conv2d(
            any_model.COLOURS, shape.width, kernel, stride=2, padding=kernel // 2, bias=False)
        self.norm = BatchNorm(shape.width)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        return F.max_pool2d(F.relu(self.norm(self.convolution(images))), 3, stride=2, padding=1)


class BottleneckBlock(nn.Module):  # type: ignore[misc]
    """Three convolutions, 1 x 1, 3 x 3 and 1 x 1, added to the input or to a projection of it."""

    def __init__(self, block: any_model.Bottleneck) -> None:
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
        y = F.relu(self.narrow_norm(self.narrow(x)))
        y = F.relu(self.middle_norm(self.middle(y)))
        y = self.wide_norm(self.wide(y))
        if self.projection is not None and self.projection_norm is not None:
            x = self.projection_norm(self.projection(x))
        return F.relu(x + y)


class ImageHead(nn.Module):  # type: ignore[misc]
    """The mean over height and width, and the logits."""

    def __init__(self, shape: any_model.ResNetShape) -> None:
        super().__init__()
        self.logits = nn.Linear(any_model.features(shape), shape.classes)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.logits(x.mean(dim=(2, 3)))


class ResNet(Model):
    """A model, or the stage of it that has ``blocks``, numbered as in the whole model.

    Takes images (samples, 3, image, image) or activations, returns logits (samples, classes) or
    activations. Children: ``stem``, ``blocks`` by number, ``head``; parts that a stage lacks are
    None. Batch norms see the samples of their own rank only."""

    def __init__(self, shape: any_model.ResNetShape, blocks: range | None = None) -> None:
        super().__init__()
        every = any_model.bottlenecks(shape)
        blocks = range(len(every)) if blocks is None else blocks
        self.shape = shape
        self.stem = Stem(shape) if blocks.start == 0 else None
        self.blocks = nn.ModuleDict({
            str(number): BottleneckBlock(every[number]) for number in blocks})
        self.head = ImageHead(shape) if blocks.stop == len(every) else None

    def initial(
        self, name: str, extents: tuple[int, ...], seed: int, device: torch.device,
    ) -> torch.Tensor:
        """Return normal weights with a variance of 2 / fan-in, He et al., arXiv:1502.01852 (2015).

        Biases and norms are random about 0 and 1; for narrow models see `NARROW_BIAS`."""
        fan_in = math.prod(extents[1:]) if len(extents) > 1 else 0
        value = drawn(name, extents, (2 / fan_in) ** 0.5 if fan_in else 0.02, seed, device)
        lifted = self.shape.is_narrow and name.endswith("norm.bias")
        return value + NARROW_BIAS if lifted else value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.stem is not None:
            x = self.stem(x)
        for block in self.blocks.values():
            x = block(x)
        return x if self.head is None else self.head(x)

"""The parts of a ResNet: their parameters one by one, and what forward keeps of them for backward.

What is kept is added up operation by operation, as for transformers (`activations`). A test
compares it with what torch 2.13 keeps on the CPU. A convolution keeps its input, and a batch norm
its input and two statistics of each channel. A ReLU keeps its result, which is the next
convolution's input; pooling keeps which pixel was the largest. All of it is in the dtype of the
arithmetic, unlike the residual of a transformer under autocast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hpcbench.kinds.training.plan.resnet import (
    COLOURS,
    STEM_KERNEL,
    Bottleneck,
    ResNetShape,
    bottlenecks,
    features,
    halved,
)
from hpcbench.kinds.training.plan.tensors import Tensor

_STATISTIC = 4
_INDEX = 8
"""Bytes of a class, of the place of the largest pixel, and of a count of batches."""


def stem_tensors(shape: ResNetShape) -> list[Tensor]:
    """Return the parameters of the stem, in the order of the model."""
    kernel = (shape.width, COLOURS, STEM_KERNEL, STEM_KERNEL)
    return [Tensor("stem.convolution.weight", kernel), *_norm("stem.norm", shape.width)]


def resnet_block_tensors(shape: ResNetShape, number: int) -> list[Tensor]:
    """Return the parameters of a block, in the order of the model."""
    block = bottlenecks(shape)[number]
    layers = [("narrow", block.inner, block.inputs, 1), ("middle", block.inner, block.inner, 3),
              ("wide", block.outputs, block.inner, 1)]
    if block.projected:
        layers.append(("projection", block.outputs, block.inputs, 1))
    tensors = []
    for name, outputs, inputs, kernel in layers:
        tensors.append(Tensor(f"blocks.{number}.{name}.weight", (outputs, inputs, kernel, kernel)))
        tensors += _norm(f"blocks.{number}.{name}_norm", outputs)
    return tensors


def resnet_head_tensors(shape: ResNetShape) -> list[Tensor]:
    """Return the parameters of the head."""
    return [Tensor("head.logits.weight", (shape.classes, features(shape))),
            Tensor("head.logits.bias", (shape.classes,))]


def _norm(name: str, channels: int) -> Iterator[Tensor]:
    yield Tensor(f"{name}.weight", (channels,))
    yield Tensor(f"{name}.bias", (channels,))


def sent_elements(shape: ResNetShape, number: int) -> int:
    """Return the elements of what a block returns of one image."""
    block = bottlenecks(shape)[number]
    return block.outputs * block.extent_behind**2


def norm_channels(shape: ResNetShape, blocks: Sequence[int]) -> list[int]:
    """Return the channels of each batch norm of these blocks, and of the stem beside block 0."""
    every = bottlenecks(shape)
    channels = [shape.width] if 0 in blocks else []
    for block in (every[number] for number in blocks):
        channels += [block.inner, block.inner, block.outputs, *[block.outputs] * block.projected]
    return channels


def running_bytes(shape: ResNetShape, blocks: Sequence[int]) -> int:
    """Return the bytes of the running statistics of these blocks' batch norms, in fp32."""
    channels = norm_channels(shape, blocks)
    return 2 * 4 * sum(channels) + _INDEX * len(channels)


def kept_bytes(shape: ResNetShape, blocks: Sequence[int], samples: int, element: int) -> int:
    """Return what one forward pass of these blocks, and of the ends beside them, keeps."""
    every = bottlenecks(shape)
    of_image = sum(_block_elements(every[number]) for number in blocks) * element
    of_image += _stem_bytes(shape, element) if 0 in blocks else 0
    of_image += _head_bytes(shape, element) if shape.layers - 1 in blocks else 0
    counted = _STATISTIC * (shape.layers - 1 in blocks)  # the loss keeps how many there were
    return samples * of_image + counted + 2 * _STATISTIC * sum(norm_channels(shape, blocks))


def working_bytes(shape: ResNetShape, last: int, samples: int, element: int) -> int:
    """Return what is there beside that while the last of a rank's blocks begins its backward.

    The gradients of its result, of its sum and of its last norm; of the logits' there is little.
    """
    return 3 * samples * sent_elements(shape, last) * element


def _block_elements(block: Bottleneck) -> int:
    """Return the elements that a block keeps of an image.

    Of the first convolution and of the second: what it returned, and that behind norm and ReLU. Of
    the third, and of a projection, what it returned; and what the block returns.
    """
    narrow = 2 * block.inner * block.extent**2
    behind = 2 * block.inner + (2 + block.projected) * block.outputs
    return narrow + behind * block.extent_behind**2


def _stem_bytes(shape: ResNetShape, element: int) -> int:
    """Return image, result of the convolution, that behind norm and ReLU, and what is pooled."""
    before, behind = halved(shape.image), halved(halved(shape.image))
    elements = COLOURS * shape.image**2 + 2 * shape.width * before**2
    return elements * element + shape.width * behind**2 * (element + _INDEX)


def _head_bytes(shape: ResNetShape, element: int) -> int:
    """Return the mean that is multiplied, the logarithms of the probabilities, and the class."""
    return features(shape) * element + 4 * shape.classes + _INDEX

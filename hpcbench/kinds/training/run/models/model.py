"""What strategies ask of a model, of whichever kind it is."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import nn
from torch.nn import functional as F

from hpcbench.kinds.training.run.models.draw import drawn

_DEVIATION = 0.02
"""Of a transformer's weights at the start."""


class Part(NamedTuple):
    """A part of a model that is built and spread on its own.

    ``prefix`` is what the names of its parameters begin with; ``number`` that of a block in the
    whole model, None of what is before or behind the blocks.
    """

    prefix: str
    module: nn.Module
    number: int | None


class Model(nn.Module):  # type: ignore[misc]
    """A model, or a stage of one: what is before the blocks, the blocks, and what is behind them.

    Ours have ``blocks``, a ModuleDict by number; a part that a stage lacks is None.
    """

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
        """Return the first value of a whole parameter, fp32, whatever stage this is.

        It is drawn for a training on ``device``, and on it where that draws for itself.
        """
        raise NotImplementedError

    def complete(self, device: torch.device) -> None:
        """Let parts that share a weight share it, and make what is no parameter but a table.

        To be called on the device of the parameters when these were replaced (to_empty,
        parallelize_module).
        """


def init_weights(
    model: Model, seed: int, part: Part | None = None, device: torch.device | None = None,
) -> None:
    """Set every parameter, or those of a part, from the seed and its name.

    Values are drawn in fp32 for a training on ``device``, by default where each parameter is, one
    parameter at a time. What is drawn does not depend on which stage of the model this is.
    """
    prefix, module, _ = part or Part("", model, None)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.copy_(model.initial(
                prefix + name, parameter.shape, seed, device or parameter.device))


def fill_part(model: Model, part: Part, device: torch.device, seed: int) -> None:
    """Give a part of a model that has no memory yet its weights of the seed."""
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
    """Return the mean cross entropy, at least fp32, of all targets.

    Those are the classes of images (samples,), or tokens (samples, tokens). BERT is trained on a
    part of the tokens only; here each counts, so that the work is the same in every step and on
    every rank. The logits are computed of all tokens either way.
    """
    wide = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(wide.flatten(0, -2), targets.flatten())


def of_transformer(
    name: str, extents: tuple[int, ...], seed: int, device: torch.device, layers: int,
    into_residual: re.Pattern[str],
) -> torch.Tensor:
    """Return the first value of a whole parameter of a transformer: see `Model.initial`.

    As GPT-2: normal of deviation 0.02, divided by the root of the number of additions to the
    residual for those that add to it: two in each of the ``layers``. Other than
    there biases and norms are random, too, about 0 and 1: a layout that adds a bias twice then has
    another loss from the first step on.
    """
    additions = 2 * layers if into_residual.fullmatch(name) else 1
    return drawn(name, extents, _DEVIATION / math.sqrt(additions), seed, device)

"""Weights at the start: the same for every layout, rank and device."""

from __future__ import annotations

import hashlib
import math
import re

import torch

from hpcbench.plan.training.models import ModelShape
from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.models.transformer import TIED

_DEVIATION = 0.02
_INTO_RESIDUAL = re.compile(
    r"blocks\.\d+\.(attention\.o|mlp\.down)\.weight"
    r"|library\..*\.(c_proj|o_proj|down_proj|output\.dense)\.weight")
"""Weights whose products are added to the residual: ours, and those of library transformers."""


def init_weights(model: Model, seed: int) -> None:
    """Set every parameter from the seed and its name, whatever stage of the model this is.

    Values are drawn in fp32 on the CPU, one parameter at a time, and copied to where it is.
    """
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(initial(model.shape, name, parameter.shape, seed))


def plain_name(shape: ModelShape, name: str) -> str:
    """Return what a stage's parameter is called in the whole model: tied ones have one name."""
    return TIED[1] if shape.tied and name == TIED[0] else name


def initial(shape: ModelShape, name: str, extents: tuple[int, ...], seed: int) -> torch.Tensor:
    """Return the first value of a whole parameter, fp32 on the CPU.

    As GPT-2: normal of deviation 0.02, divided by the root of the number of additions to the
    residual for those that add to it. Other than there biases and norms are random, too, about 0
    and 1: a layout that adds a bias twice then has another loss from the first step on.
    """
    name = plain_name(shape, name)
    residual = _INTO_RESIDUAL.fullmatch(name)
    deviation = _DEVIATION / math.sqrt(2 * shape.layers) if residual else _DEVIATION
    return drawn(name, extents, deviation, seed)


def drawn(name: str, extents: tuple[int, ...], deviation: float, seed: int) -> torch.Tensor:
    """Return normal numbers that depend on seed and name; weights of norms are about 1."""
    mean = 1.0 if len(extents) == 1 and name.endswith(".weight") else 0.0
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little"))
    return torch.empty(extents).normal_(mean, deviation, generator=generator)

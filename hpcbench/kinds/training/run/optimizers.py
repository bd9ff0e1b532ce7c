"""The optimizers that trainings name, with the same settings everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.units import grouped


class Recipe(NamedTuple):
    """A class of torch.optim and its settings; the rest are torch's defaults."""

    kind: type[torch.optim.Optimizer]
    settings: Mapping[str, Any]


RECIPES: Mapping[str, Recipe] = MappingProxyType({
    "adamw": Recipe(torch.optim.AdamW, MappingProxyType({"lr": 1e-4, "weight_decay": 0.1})),
    "sgd": Recipe(torch.optim.SGD, MappingProxyType({"lr": 1e-2})),
})
"""Rates at which no model diverges on random tokens. sgd has no momentum, and so no states."""


def make_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    """Return an optimizer of these parameters."""
    recipe = RECIPES[name]
    return recipe.kind(parameters, **recipe.settings)


def grouped_optimizer(name: str, parameters: Iterable[nn.Parameter]) -> torch.optim.Optimizer:
    """Return an optimizer whose groups hold parameters of one mesh each.

    torch updates the parameters of a group together where it can. It cannot where some are DTensors
    and some are not, or where their meshes differ.
    """
    groups = grouped((one.device_mesh if isinstance(one, DTensor) else None, one)
                     for one in parameters)
    return make_optimizer(name, [{"params": group} for group in groups.values()])

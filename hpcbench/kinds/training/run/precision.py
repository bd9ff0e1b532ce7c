"""The optimizers that trainings name, with the same settings everywhere.

Mixed precision over fp32 weights: what a dtype means for a step.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.kinds.training.run.memory import local
from hpcbench.operations.data import DTYPES
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


INITIAL_SCALE = 2.0**10
"""By which fp16 losses are multiplied at first. torch's 2^16 would overflow in the first steps of
some models, and a step that is skipped is no step; this is a power of two, so it rounds nothing."""


def is_mixed(dtype: str) -> bool:
    """Return whether the arithmetic is of another dtype than the weights, which are fp32."""
    return dtype != "fp32"


def autocast(dtype: str, device: torch.device) -> AbstractContextManager[object]:
    """Return torch's context in which products are of the dtype."""
    if not is_mixed(dtype):
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device.type, DTYPES[dtype])
    return context


class Autocast(nn.Module):  # type: ignore[misc]
    """A module whose forward pass is in the arithmetic of a dtype."""

    def __init__(self, module: nn.Module, dtype: str, device: torch.device) -> None:
        super().__init__()
        self.module = module
        self._dtype = dtype
        self._device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with autocast(self._dtype, self._device):
            return self.module(x)


class AgreedScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler of ranks with different gradients: what overflows on one is a step of none.

    As in torch.distributed.fsdp.sharded_grad_scaler, which is for the older FSDP. Gradients may be
    DTensors and others together; of DTensors each rank looks at its own part.
    """

    def __init__(self, dtype: str, device: torch.device, group: Any) -> None:
        super().__init__(device.type, init_scale=INITIAL_SCALE, enabled=dtype == "fp16")
        self._group = group
        # Otherwise made when a loss is scaled: ranks without one ask for it, too.
        self.scale(torch.zeros((), device=device))

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        gradients = [local(item.grad) for group in optimizer.param_groups
                     for item in group["params"] if item.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=self._group)
        return {found_inf.device: found_inf}

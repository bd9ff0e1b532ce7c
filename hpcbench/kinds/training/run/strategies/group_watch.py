"""When the gradients of a rank are there that torch's fully_shard, or its sibling, exchanges."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn
from torch.distributed.fsdp import FSDPModule

from hpcbench.trace.schema import ARRIVAL

MOST = 32
"""Of more buckets so many are watched, from the first to the last."""


class GroupWatch:
    """Calls a callback with the name of each group of parameters whose gradients are there.

    A group is a block, or what is no block; its gradients are exchanged together. The moment is
    that before torch begins with it: the group's own ``post_backward``, for which torch has no
    public hook. In micro-batches that exchange nothing it is not called.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch a model whose parts are spread already, or not at all."""
        self.on_bucket: Callable[[str], object] = lambda _name: None
        groups = list(_groups(model))[::-1]  # backward begins with the last block; the root ends it
        for number in spread(len(groups)):
            self._watch(groups[number], f"{ARRIVAL}{number + 1}")

    def _watch(self, group: Any, name: str) -> None:
        exchange = group.post_backward

        def post_backward(*unused: Any) -> Any:
            if group.reduce_grads:
                self.on_bucket(name)
            return exchange(*unused)

        group.post_backward = post_backward


def _groups(model: nn.Module) -> Iterator[Any]:
    """Yield the groups of a model that have something to train, the root's first."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:
            if any(one.sharded_param.requires_grad for one in group.fsdp_params):
                yield group


def spread(count: int) -> list[int]:
    """Return up to MOST of so many numbers from 0, the first and the last among them."""
    if count <= MOST:
        return list(range(count))
    return [number * (count - 1) // (MOST - 1) for number in range(MOST)]

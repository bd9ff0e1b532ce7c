"""Data parallelism of a part of a model among other dimensions: copies of it, or shards."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpcbench.kinds.training.plan.lookup import layout_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.precision import autocast, is_mixed
from hpcbench.operations.dtypes import DTYPES


class Sharder:
    """How parts of a model are spread over the replicas, on a mesh of one dimension.

    Both forms are torch's: ``fully_shard``, and its sibling that keeps copies. DDP is not used
    here, since it cannot exchange the gradients of parameters that are divided already, nor those
    of backwards in two halves.
    """

    def __init__(self, mesh: DeviceMesh | None, spec: Training) -> None:
        """``mesh`` None: there is one replica."""
        self._mesh = mesh
        self._spec = spec
        self._groups = layout_of(spec).groups
        mixed = is_mixed(spec.dtype)
        self._policy = MixedPrecisionPolicy(
            param_dtype=DTYPES[spec.dtype], reduce_dtype=torch.float32,
        ) if mixed else MixedPrecisionPolicy()

    def shard(self, part: nn.Module) -> None:
        """Spread a block, or a model whose blocks are."""
        if self._mesh is None or self._groups is None:
            return
        if self._groups.shards > 1:
            fully_shard(part, mesh=self._mesh, mp_policy=self._policy,
                        reshard_after_forward=self._groups.reshard)
        else:
            # torch has no public name for it; other layouts need no torch that has it
            from torch.distributed._composable.replicate_with_fsdp import replicate

            replicate(part, mesh=self._mesh, mp_policy=self._policy)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context of a forward pass: what is spread is cast by its policy."""
        return autocast(self._spec.dtype, device) if self._mesh is None else nullcontext()

    def synchronize(self, model: nn.Module, last: bool) -> None:
        """Set whether backward exchanges gradients: with the last micro-batch only."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)

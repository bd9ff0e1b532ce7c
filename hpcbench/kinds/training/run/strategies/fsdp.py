"""Data parallelism by torch's ``fully_shard`` (FSDP2), and its sibling that keeps copies."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpcbench.kinds.training.plan.registry import layout_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import build
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.phases import PhaseClock
from hpcbench.kinds.training.run.precision import autocast, is_mixed
from hpcbench.kinds.training.run.strategies.base import Batch, Grid, row_of
from hpcbench.kinds.training.run.strategies.replica import GroupWatch, Replica
from hpcbench.operations.data import DTYPES


class Fsdp(Replica):
    """torch's fully_shard: a block's parameters are gathered when it runs, gradients scattered.

    Blocks with ``reshard`` give up what they gathered after forward and gather it again in
    backward (ZeRO-3); without, they keep it until then (ZeRO-2). What is no block is the root,
    which always keeps it: backward begins there.
    """

    def build(self) -> Model:
        """Return the sharded model. There is never more of it whole on a rank than a block."""
        mesh, policy = self.open_mesh(), _policy(self.spec)

        def shard(part: nn.Module) -> None:
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=_gives_up(
                part, bool(self.spec.option("reshard"))))

        return build(self.draft(), self.place.device, self.fill, shard=shard)

    def wrap(self, model: Model) -> nn.Module:
        self._watch = GroupWatch(model)
        return model

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        self._watch.on_bucket = phases.arrive
        return super().forward_backward(batch, phases)

    def open_mesh(self) -> DeviceMesh:
        """Return all ranks of the group under test, in a row."""
        return row_of(self.place, "shard")

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: parameters and inputs are cast by the policy."""
        return nullcontext()

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Set whether gradients are scattered; parameters are gathered in every micro-batch."""
        self.model.set_requires_gradient_sync(self.exchanges(last))
        return nullcontext()

    def exchanges(self, last: bool) -> bool:
        """Return whether a micro-batch exchanges gradients: the last one, or each."""
        groups = layout_of(self.spec).groups
        return last or (groups is not None and groups.exchanges > 1)


class Hsdp(Fsdp):
    """Shards within each of ``replicas`` groups of consecutive ranks, copies between them."""

    def open_mesh(self) -> DeviceMesh:
        """Return the ranks as replicas x shards, on groups that are opened for it."""
        replicas = int(self.spec.option("replicas"))
        self.grid = Grid(self.place, {
            "replicate": replicas, "shard": self.place.world_size // replicas})
        return self.grid.mesh


class Sharder:
    """How parts of a model are spread over the replicas among other dimensions, on a mesh of one.

    Both forms are torch's: ``fully_shard``, and its sibling that keeps copies. DDP is not used
    here, since it cannot exchange the gradients of parameters that are divided already, nor those
    of backwards in two halves.
    """

    def __init__(self, mesh: DeviceMesh | None, spec: Training) -> None:
        """``mesh`` None: there is one replica."""
        self._mesh = mesh
        self._spec = spec
        self._groups = layout_of(spec).groups
        self._policy = _policy(spec)

    def shard(self, part: nn.Module) -> None:
        """Spread a block, or a model whose blocks are."""
        if self._mesh is None or self._groups is None:
            return
        if self._groups.shards > 1:
            fully_shard(part, mesh=self._mesh, mp_policy=self._policy,
                        reshard_after_forward=_gives_up(part, self._groups.reshard))
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


def _gives_up(part: nn.Module, reshard: bool) -> bool | None:
    """Return whether a part gives up after forward what it gathered; None is torch's own way.

    That is to keep what is no block, the root: backward begins there.
    """
    return None if isinstance(part, Model) else reshard


def _policy(spec: Training) -> MixedPrecisionPolicy:
    """Return in what parameters are gathered; gradients are reduced in fp32."""
    if not is_mixed(spec.dtype):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[spec.dtype], reduce_dtype=torch.float32)

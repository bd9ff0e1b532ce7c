"""Fully sharded data parallelism (FSDP2): each rank keeps a part of every parameter."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.precision import is_mixed
from hpcbench.kinds.training.run.strategies.mesh import Grid, row_of
from hpcbench.kinds.training.run.strategies.parts import as_it_is, build
from hpcbench.kinds.training.run.strategies.replica import Replica
from hpcbench.operations.dtypes import DTYPES


class Fsdp(Replica):
    """torch's fully_shard: a block's parameters are gathered when it runs, gradients scattered.

    Blocks with ``reshard`` give up what they gathered after forward and gather it again in
    backward (ZeRO-3); without, they keep it until then (ZeRO-2). What is no block is the root,
    which always keeps it: backward begins there.
    """

    def build(self) -> Model:
        """Return the sharded model. There is never more of it whole on a rank than a block."""
        mesh, policy = self.open_mesh(), self._policy()

        def shard(part: nn.Module) -> None:
            gives_up = None if isinstance(part, Model) else bool(self.spec.option("reshard"))
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=gives_up)

        return build(self.draft(), self.place.device, self.fill, as_it_is, shard)

    def open_mesh(self) -> DeviceMesh:
        """Return all ranks of the group under test, in a row."""
        return row_of(self.place, "shard")

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: parameters and inputs are cast by the policy."""
        return nullcontext()

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Set whether gradients are scattered; parameters are gathered in every micro-batch."""
        assert isinstance(self.model, FSDPModule)  # noqa: S101
        self.model.set_requires_gradient_sync(last)
        return nullcontext()

    def _policy(self) -> MixedPrecisionPolicy:
        """Return in what parameters are gathered; gradients are reduced in fp32."""
        if not is_mixed(self.spec.dtype):
            return MixedPrecisionPolicy()
        return MixedPrecisionPolicy(param_dtype=DTYPES[self.spec.dtype], reduce_dtype=torch.float32)


class Hsdp(Fsdp):
    """Shards within each of ``replicas`` groups of consecutive ranks, copies between them."""

    def open_mesh(self) -> DeviceMesh:
        """Return the ranks as replicas x shards, on groups that are opened for it."""
        replicas = int(self.spec.option("replicas"))
        self._grid = Grid(self.place, {
            "replicate": replicas, "shard": self.place.world_size // replicas})
        return self._grid.mesh

    def close(self) -> None:
        """Close the groups of the mesh. All ranks call it."""
        self._grid.close()

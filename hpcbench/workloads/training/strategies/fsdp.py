"""Fully sharded data parallelism (FSDP2): each rank keeps a part of every parameter."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

from hpcbench.plan.training.models import shape_of
from hpcbench.workloads.collectives.operation import DTYPES
from hpcbench.workloads.training.data import SEED
from hpcbench.workloads.training.models.transformer import Transformer
from hpcbench.workloads.training.models.weights import initial
from hpcbench.workloads.training.precision import is_mixed
from hpcbench.workloads.training.strategies.mesh import Grid, row_of
from hpcbench.workloads.training.strategies.replica import Replica


class Fsdp(Replica):
    """torch's fully_shard: a block's parameters are gathered when it runs, gradients scattered.

    Blocks with ``reshard`` give up what they gathered after forward and gather it again in
    backward (ZeRO-3); without, they keep it until then (ZeRO-2). Embedding and head are the root,
    which always keeps it: backward begins there.
    """

    def build(self) -> Transformer:
        """Return the sharded model. There is never more of it whole on a rank than a block."""
        model = self.draft()
        mesh, policy = self.open_mesh(), self._policy()
        for number, block in model.blocks.items():
            self.fill(block, f"blocks.{number}.")
            fully_shard(block, mesh=mesh, mp_policy=policy,
                        reshard_after_forward=bool(self.spec.option("reshard")))
        for name in ("embedding", "head"):
            self.fill(model.get_submodule(name), f"{name}.")
        model.tie()
        fully_shard(model, mesh=mesh, mp_policy=policy)
        return model

    def draft(self) -> Transformer:
        """Return the model without memory."""
        with torch.device("meta"):
            return Transformer(shape_of(self.spec), checkpointing=self.spec.checkpointing)

    def wrap(self, model: Transformer) -> nn.Module:
        """Return the model, which was sharded when it was built."""
        return model

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

    def fill(self, part: nn.Module, prefix: str) -> None:
        """Give a part that has no memory yet its weights of the seed."""
        part.to_empty(device=self.place.device)
        shape = shape_of(self.spec)
        with torch.no_grad():
            for name, parameter in part.named_parameters():
                parameter.copy_(initial(shape, prefix + name, parameter.shape, SEED))


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

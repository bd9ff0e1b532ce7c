"""Implementation ``dtensor``: placements are declared, torch chooses the collectives.

`DTensor.redistribute` is called where ranks communicate in a primitive's order; the products find
operands that need no communication. The mesh is the group under test. DTensor has no ``out=``: its
results are tensors of their own, allocated at each call."""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard

from hpcbench.kinds.primitive.run import inputs as rank_inputs
from hpcbench.kinds.primitive.run.implementations.base import AnyInputs, Returning


class _OnMesh(Returning[AnyInputs]):
    """The base of all: the group under test as a mesh of one dimension."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        # torch remembers what came of a product by the mesh's ranks and names, not by its group:
        # without the group in the name, results would be of the mesh of an earlier backend.
        self._mesh = DeviceMesh.from_group(
            self.group, inputs.place.device.type,
            mesh_dim_names=(f"ranks of group {self.group.group_name}",))

    def placed(self, local: torch.Tensor, placement: Placement) -> Any:
        return DTensor.from_local(local, self._mesh, [placement], run_check=False)


def _redistributed(tensor: Any, placement: Placement) -> Any:
    return tensor.redistribute(placements=[placement])


def _local(tensor: Any) -> torch.Tensor:
    """Return this rank's part of a tensor; complete, or ordered on the stream."""
    local = tensor.to_local()
    return local.wait() if hasattr(local, "wait") else local


class Columnwise(_OnMesh[rank_inputs.ColumnwiseInputs]):
    """Rows of A become all of A before the product, or rows of C all of C after it."""

    def __init__(self, inputs: rank_inputs.ColumnwiseInputs) -> None:
        super().__init__(inputs)
        sharded = inputs.gather_first and inputs.spec.option("weight") == "sharded"
        self._rows = self.placed(inputs.rows, Shard(0))
        self._weight = self.placed(inputs.weight, Shard(1) if sharded else Replicate())

    def run(self) -> None:
        if self.inputs.gather_first:
            self.output = _local(_redistributed(self._rows, Replicate()) @ self._weight)
        else:
            self.output = _local(_redistributed(self._rows @ self._weight, Replicate()))


class Rowwise(_OnMesh[rank_inputs.RowwiseInputs]):
    """A product of columns with rows is partial; it becomes rows of C, or all of C."""

    def __init__(self, inputs: rank_inputs.RowwiseInputs) -> None:
        super().__init__(inputs)
        self._columns = self.placed(inputs.columns, Shard(1))
        self._weight = self.placed(inputs.weight, Shard(0))
        self._placement: Placement = Shard(0) if inputs.scatter else Replicate()

    def run(self) -> None:
        self.output = _local(_redistributed(self._columns @ self._weight, self._placement))


class Mlp(_OnMesh[rank_inputs.MlpInputs]):
    """Tokens become whole, both products need nothing, the partial result is reduced."""

    def __init__(self, inputs: rank_inputs.MlpInputs) -> None:
        super().__init__(inputs)
        self._placement: Placement = Shard(0) if inputs.sequence_parallel else Replicate()
        self._tokens = self.placed(inputs.tokens, self._placement)
        self._up = self.placed(inputs.up, Shard(1))
        self._down = self.placed(inputs.down, Shard(0))

    def run(self) -> None:
        hidden = _redistributed(self._tokens, Replicate()) @ self._up
        partial = self.inputs.activate(hidden) @ self._down
        self.output = _local(_redistributed(partial, self._placement))


class Gradients(_OnMesh[rank_inputs.GradientInputs]):
    """Products over divided tokens are partial; those of all layers become whole together."""

    def __init__(self, inputs: rank_inputs.GradientInputs) -> None:
        super().__init__(inputs)
        self._gradients = self.placed(inputs.gradients, Shard(1))
        self._tokens = self.placed(inputs.tokens, Shard(0)).expand(inputs.layers, -1, -1)

    def run(self) -> None:
        partial = torch.bmm(self._gradients.mT, self._tokens)
        self.output = _local(_redistributed(partial, Replicate()))

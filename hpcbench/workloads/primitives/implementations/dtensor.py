"""Implementation ``dtensor``: placements are declared, torch chooses the collectives.

`DTensor.redistribute` is where a primitive's order says that ranks communicate; the products
find operands that need none. The mesh is the group under test.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Placement, Replicate, Shard

from hpcbench.workloads.primitives.implementations.base import AnyInputs, Implementation
from hpcbench.workloads.primitives.inputs.tp_columnwise import Columnwise as ColumnwiseInputs


class _OnMesh(Implementation[AnyInputs]):
    """What all have in common: the group under test as a mesh of one dimension."""

    def __init__(self, inputs: AnyInputs) -> None:
        super().__init__(inputs)
        self._mesh = DeviceMesh.from_group(self.group, inputs.place.device.type)

    def placed(self, local: torch.Tensor, placement: Placement) -> DTensor:
        """Return this rank's part as the global tensor that it is a part of."""
        return DTensor.from_local(local, self._mesh, [placement], run_check=False)


def _local(tensor: DTensor, placement: Placement) -> torch.Tensor:
    """Return this rank's part of a tensor, redistributed; complete, or ordered on the stream."""
    local: Any = tensor.redistribute(placements=[placement]).to_local()
    return local.wait() if hasattr(local, "wait") else local


class Columnwise(_OnMesh[ColumnwiseInputs]):
    """Rows of A become all of A, or rows of C all of C."""

    def __init__(self, inputs: ColumnwiseInputs) -> None:
        super().__init__(inputs)
        sharded = inputs.gather_first and inputs.spec.option("weight") == "sharded"
        self._rows = self.placed(inputs.rows, Shard(0))
        self._weight = self.placed(inputs.weight, Shard(1) if sharded else Replicate())

    def run(self) -> None:
        """Gather and multiply, in the order asked for."""
        if self.inputs.gather_first:
            whole = self._rows.redistribute(placements=[Replicate()])
            self.output = _local(whole @ self._weight, self._weight.placements[0])
        else:
            self.output = _local(self._rows @ self._weight, Replicate())

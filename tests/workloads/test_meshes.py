"""What torch remembers of one group's mesh is not used for another group of the same ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist
from torch.distributed.tensor import DTensor, Replicate, Shard

from hpcbench.kinds.primitive.run.implementations.dtensor import Rowwise
from hpcbench.kinds.training.run.strategies.base import row_of
from hpcbench.operations.place import Place
from workloads.primitive_ranks import Shape, ranks_of
from workloads.training_cases import alone


@pytest.fixture
def places() -> Iterator[list[Place]]:
    """Two groups of this process alone, as two backends have them."""
    with alone() as place:
        yield [Place(0, 1, dist.new_group([0]), place.device) for _ in range(2)]


def test_a_product_is_of_the_mesh_of_its_operands(places: list[Place]) -> None:
    for place in places:
        (inputs,) = ranks_of("tp_rowwise", "RS_after", "fp32", Shape(4, 4, 4, 1))
        inputs.place = place
        rowwise = Rowwise(inputs)
        product = rowwise._columns @ rowwise._weight
        assert product.device_mesh.get_group() is place.group


def test_what_is_sharded_by_a_strategy_is_of_its_group(places: list[Place]) -> None:
    for place in places:
        mesh = row_of(place, "shard")
        parts = [DTensor.from_local(torch.ones(4, 4), mesh, [placement], run_check=False)
                 for placement in (Shard(0), Replicate())]
        assert (parts[0] @ parts[1]).device_mesh.get_group() is place.group

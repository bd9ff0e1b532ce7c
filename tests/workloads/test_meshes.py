"""What torch remembers of one group's mesh is not used for another group of the same ranks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.distributed as dist

from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.primitives.implementations.dtensor import Rowwise
from workloads.primitive_ranks import Shape, ranks_of


@pytest.fixture
def places() -> Iterator[list[Place]]:
    """Two groups of this process alone, as two backends have them."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield [Place(0, 1, dist.new_group([0]), torch.device("cpu")) for _ in range(2)]
    dist.destroy_process_group()


def test_a_product_is_of_the_mesh_of_its_operands(places: list[Place]) -> None:
    for place in places:
        (inputs,) = ranks_of("tp_rowwise", "RS_after", "fp32", Shape(4, 4, 4, 1))
        inputs.place = place
        rowwise = Rowwise(inputs)
        product = rowwise._columns @ rowwise._weight
        assert product.device_mesh.get_group() is place.group

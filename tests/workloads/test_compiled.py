"""Compiled implementations in one process: compiled once, in set-up, and honest about fusing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from torch.distributed import _symmetric_memory

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.registry import load_registry
from hpcbench.kinds.primitive.plan.spec import Problem
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.operation import PrimitiveOperation
from hpcbench.operations.place import Place

pytestmark = [pytest.mark.usefixtures("compiler"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of torch, to itself


@pytest.fixture
def place() -> Iterator[Place]:
    """Return the place of the only rank of a real gloo group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield Place(0, 1, dist.group.WORLD, torch.device("cpu"))
    dist.destroy_process_group()


def workload(implementation: str, m: int, primitive: str = "tp_columnwise") -> Primitive:
    """Return a primitive of one rank in its first order."""
    registry = load_registry()
    spec, found = registry.primitives[primitive], registry.implementation(implementation, primitive)
    assert found is not None
    problem = Problem(m, 6, 4, "fp32", 1, spec.orders[0], {"weight": "sharded"})
    return make_workload(spec, found, problem)[0]


def test_nothing_is_compiled_after_set_up(place: Place) -> None:
    for m in range(8, 18):  # more shapes than torch compiles of one function before it gives up
        operation = PrimitiveOperation(workload("compiled", m), place)
        with torch.compiler.set_stance("fail_on_recompile"):
            for _ in range(2):
                operation.prepare()
                operation.run()
                assert operation.check() is None


def test_async_tensor_parallelism_that_fuses_nothing_is_no_result(place: Place) -> None:
    with pytest.raises(CaseError, match="did not fuse _c10d_functional.all_gather"):
        PrimitiveOperation(workload("compiled_async_tp", 8), place)


@pytest.mark.parametrize("primitive", ["tp_columnwise", "tp_rowwise"])
def test_async_tensor_parallelism_finds_what_it_can_fuse(
    place: Place, monkeypatch: pytest.MonkeyPatch, primitive: str,
) -> None:
    """The pass runs for real; the GPU's operators, which it puts in, are torch's fallbacks here."""
    monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    called = []

    def fallback(name: str, *operands: object, **options: object) -> object:
        called.append(name)
        return getattr(_symmetric_memory, f"_{name}_fallback")(*operands, **options)

    with torch.library._scoped_library("symm_mem", "IMPL") as library:
        for name in ("fused_all_gather_matmul", "fused_matmul_reduce_scatter"):
            library.impl(name, partial(fallback, name), "CPU")
        operation = PrimitiveOperation(workload("compiled_async_tp", 8, primitive), place)
        called.clear()
        operation.prepare()
        operation.run()
    assert operation.check() is None
    assert called == ["fused_all_gather_matmul" if primitive == "tp_columnwise" else
                      "fused_matmul_reduce_scatter"]

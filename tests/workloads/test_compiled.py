"""Compiled implementations in one process: compiled once, in set-up, and honest about fusing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
import torch.distributed as dist
from primitive_ranks import REGISTRY, Shape, workload_of
from torch.distributed import _symmetric_memory
from torch.testing._internal.distributed.fake_pg import FakeStore

from hpcbench.errors import CaseError
from hpcbench.kinds.primitive.plan.implementations import load_registry
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.spec import Problem
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run.implementations.base import PrimitiveOperation
from hpcbench.operations.place import Place

pytestmark = [pytest.mark.usefixtures("compiler"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning")]  # of torch, to itself


GATHER, SCATTER = "fused_all_gather_matmul", "fused_matmul_reduce_scatter"
FUSED = {("tp_columnwise", "AG_before"): [GATHER], ("tp_rowwise", "RS_after"): [SCATTER],
         ("tp_mlp", "sequence_parallel"): [GATHER, SCATTER]}
"""What the plan offers of compiled_async_tp, and the operators that must stand in the graph."""


@pytest.fixture
def four() -> Iterator[Place]:
    """Return the place of rank 0 of four, in torch's group that moves nothing."""
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=4)
    yield Place(0, 4, dist.group.WORLD, torch.device("cpu"))
    dist.destroy_process_group()


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


def test_async_tensor_parallelism_that_fuses_nothing_is_no_result(
    place: Place, monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(dist, "is_nccl_available", lambda: False)  # so in the CPU build
    with pytest.raises(CaseError, match="did not fuse _c10d_functional.all_gather"):
        PrimitiveOperation(workload("compiled_async_tp", 8), place)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Let torch's pass run, and return the operators of the GPU that are called.

    On CPU tensors each is torch's own fallback. The pass asks for NCCL, which the CPU build lacks;
    tests/mpi/test_cuda_wheel.py runs this file with the CUDA build, where nothing is set.
    """
    if torch.version.cuda is None:
        monkeypatch.setattr(dist, "is_nccl_available", lambda: True)
    called: list[str] = []

    def fallback(name: str, *operands: object, **options: object) -> object:
        called.append(name)
        return getattr(_symmetric_memory, f"_{name}_fallback")(*operands, **options)

    with torch.library._scoped_library("symm_mem", "IMPL") as library:
        for name in (GATHER, SCATTER):
            library.impl(name, partial(fallback, name), "CPU")
        yield called


@pytest.mark.parametrize(("primitive", "operator"), [("tp_columnwise", GATHER),
                                                     ("tp_rowwise", SCATTER)])
def test_async_tensor_parallelism_finds_what_it_can_fuse(
    place: Place, fused: list[str], primitive: str, operator: str,
) -> None:
    """The pass runs for real; the GPU's operators, which it puts in, are torch's fallbacks here."""
    operation = PrimitiveOperation(workload("compiled_async_tp", 8, primitive), place)
    fused.clear()
    operation.prepare()
    operation.run()
    assert operation.check() is None
    assert fused == [operator]


@pytest.mark.parametrize(("primitive", "order"), FUSED)
def test_async_tensor_parallelism_fuses_all_that_the_plan_offers_between_four_ranks(
    four: Place, fused: list[str], primitive: str, order: str,
) -> None:
    """What is not fused would be an error, so nothing of it is left; values need real ranks."""
    PrimitiveOperation(workload_of(primitive, order, "bf16", Shape(64, 256, 128, four.world_size),
                                   "compiled_async_tp"), four)
    assert fused == FUSED[primitive, order]


def test_the_plan_offers_no_order_that_is_not_tried_here() -> None:
    spec = REGISTRY.implementation("compiled_async_tp", "tp_mlp")
    assert spec is not None and spec.orders == set(FUSED)

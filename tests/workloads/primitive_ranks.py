"""All ranks of a primitive in one process, and what they would end with, with or without a fault.

The result is computed from what each rank is given, in the dtype of the case, every partial sum
rounded to it, as ranks do; in int64 it is the exact result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any
from unittest import mock

import torch

from hpcbench.kinds.primitive.plan.implementations import load_registry
from hpcbench.kinds.primitive.plan.planner import make_workload
from hpcbench.kinds.primitive.plan.spec import Problem, options_of
from hpcbench.kinds.primitive.plan.workload import Primitive
from hpcbench.kinds.primitive.run import operands
from hpcbench.kinds.primitive.run.inputs import (
    ColumnwiseInputs,
    ExpertInputs,
    GradientInputs,
    MlpInputs,
    RowwiseInputs,
)
from hpcbench.operations.place import Place

REGISTRY = load_registry()
INPUTS = {"tp_columnwise": ColumnwiseInputs, "tp_rowwise": RowwiseInputs, "tp_mlp": MlpInputs,
          "dp_allreduce": GradientInputs, "ep_all_to_all": ExpertInputs}
ORDERS = [(spec.name, order) for spec in REGISTRY.primitives.values() if spec.name in INPUTS
          for order in spec.orders]
_SHARDS = {"tp_columnwise": "rows", "tp_rowwise": "columns", "tp_mlp": "up",
           "dp_allreduce": "tokens", "ep_all_to_all": "weight"}
DRAWN = ("cancelling_terms", "left_factors", "right_factors", "mlp_factors", "left_operand",
         "right_operand")
"""What draws global operands."""


@dataclass(frozen=True)
class Shape:
    """The global problem and the number of ranks."""

    m: int
    n: int
    k: int
    ranks: int

    def __str__(self) -> str:
        return f"{self.m}x{self.n}x{self.k}/{self.ranks}"


def workload_of(
    primitive: str, order: str, dtype: str, shape: Shape, implementation: str = "torch",
    **options: Any,
) -> Primitive:
    """Return a workload; options that are not given have their defaults."""
    spec = REGISTRY.primitives[primitive]
    runs = REGISTRY.implementation(implementation, primitive)
    assert runs is not None
    defaults = {name: values.default for name, values in options_of(spec, runs).items()}
    problem = Problem(shape.m, shape.n, shape.k, dtype, shape.ranks, order, {**defaults, **options})
    workload, skip = make_workload(spec, runs, problem)
    assert skip is None, skip
    return workload


def place_of(rank: int, ranks: int) -> Place:
    """Return a place without a process group."""
    return Place(rank, ranks, None, torch.device("cpu"))


def ranks_of(
    primitive: str, order: str, dtype: str, shape: Shape, **options: Any,
) -> list[Any]:
    """Return the inputs of every rank; the operands, which all have in common, are drawn once."""
    workload = workload_of(primitive, order, dtype, shape, **options)
    drawn = {name: cache(getattr(operands, name)) for name in DRAWN}
    with mock.patch.multiple(operands, **drawn):
        return [INPUTS[primitive](workload, place_of(rank, shape.ranks))
                for rank in range(shape.ranks)]


def swap_shards(ranks: Sequence[Any]) -> None:
    """Give the first two ranks each other's shard of one operand."""
    name = _SHARDS[ranks[0].spec.primitive]
    first, second = getattr(ranks[0], name), getattr(ranks[1], name)
    setattr(ranks[0], name, second)
    setattr(ranks[1], name, first)


def result(
    ranks: Sequence[Any], me: int, dtype: torch.dtype, *, dropped: bool = False,
) -> torch.Tensor:
    """Return what rank ``me`` ends with; ``dropped``: without the last rank's partial sum.

    Where ranks have no partial sums of their own, it is the last 1 / d of the inner extent.
    """
    own = ranks[me]
    if isinstance(own, ColumnwiseInputs):
        return _product(torch.cat([rank.rows for rank in ranks]), own.weight, dtype,
                        len(ranks) if dropped else 0)
    if isinstance(own, ExpertInputs):
        return torch.cat([
            _product(tokens, rank.weight, dtype, len(ranks) if dropped else 0)
            for tokens, rank in zip(own.tokens.split(own.counts), ranks, strict=True)])
    total = _summed([_partial(rank, ranks, dtype)
                     for rank in (ranks[:-1] if dropped else ranks)])
    scattered = getattr(own, "scatter", False) or getattr(own, "sequence_parallel", False)
    return total.chunk(len(ranks))[me] if scattered else total


def _partial(rank: Any, ranks: Sequence[Any], dtype: torch.dtype) -> torch.Tensor:
    if isinstance(rank, RowwiseInputs):
        return _product(rank.columns, rank.weight, dtype)
    if isinstance(rank, GradientInputs):
        return torch.stack([_product(one.T, rank.tokens, dtype) for one in rank.gradients])
    tokens = torch.cat([other.tokens for other in ranks]) if rank.sequence_parallel else rank.tokens
    return _product(rank.activate(_product(tokens, rank.up, dtype)), rank.down, dtype)


def _product(
    left: torch.Tensor, right: torch.Tensor, dtype: torch.dtype, shortened: int = 0,
) -> torch.Tensor:
    kept = left.shape[1] - (left.shape[1] // shortened if shortened else 0)
    return left[:, :kept].to(dtype) @ right[:kept].to(dtype)


def _summed(partials: Sequence[torch.Tensor]) -> torch.Tensor:
    total = partials[0].clone()
    for partial in partials[1:]:
        total += partial
    return total

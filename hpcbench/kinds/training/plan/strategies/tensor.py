"""Strategy ``tensor``: every layer is divided among the ranks (Megatron)."""

from __future__ import annotations

from collections.abc import Mapping

from hpcbench.kinds.training.plan.model_parallel import (
    TENSOR_OPTIONS,
    model_parallel_layout,
    tensor_call_names,
    unfit_tensors,
)
from hpcbench.kinds.training.plan.spec import Degrees, StrategySpec
from hpcbench.plan.options import Option


def _of_tensors(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    return Degrees(tp=ranks) if ranks > 1 else "one rank has no other to share a layer with"


SPEC = StrategySpec(
    name="tensor",
    meaning="every layer is divided among the ranks: heads, columns, words (Megatron)",
    runner="hpcbench.kinds.training.run.strategies.tensor:Tensor", order=60,
    degrees=_of_tensors, unfit=unfit_tensors, layout=model_parallel_layout,
    calls=tensor_call_names, options=TENSOR_OPTIONS, divides_model=True)

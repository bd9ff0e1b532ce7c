"""Strategy ``model``: a pipeline of one micro-batch, so that one rank works at a time."""

from __future__ import annotations

from hpcbench.kinds.training.plan.model_parallel import (
    model_parallel_layout,
    stage_call_names,
    stage_degrees,
    unfit_stages,
)
from hpcbench.kinds.training.plan.spec import StrategySpec

SPEC = StrategySpec(
    name="model", meaning="layers are divided among the ranks, of which one works at a time",
    runner="hpcbench.kinds.training.run.strategies.pipeline:Pipeline", order=70,
    degrees=stage_degrees, unfit=unfit_stages, layout=model_parallel_layout,
    calls=stage_call_names, divides_model=True)

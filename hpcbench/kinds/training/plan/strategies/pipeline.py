"""Strategy ``pipeline``: layers are divided, and micro-batches pass through the ranks."""

from __future__ import annotations

from hpcbench.kinds.training.plan.model_parallel import (
    PIPELINE_OPTIONS,
    model_parallel_layout,
    stage_call_names,
    stage_degrees,
    unfit_stages,
)
from hpcbench.kinds.training.plan.spec import StrategySpec

SPEC = StrategySpec(
    name="pipeline",
    meaning="layers are divided among the ranks, micro-batches pass through them",
    runner="hpcbench.kinds.training.run.strategies.pipeline:Pipeline", order=80,
    degrees=stage_degrees, unfit=unfit_stages, layout=model_parallel_layout,
    calls=stage_call_names, options=PIPELINE_OPTIONS, divides_model=True)

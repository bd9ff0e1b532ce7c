"""Which trainings of a sweep are the same program under several names.

A model of a few MiB has its gradients in one bucket, whether a bucket may hold 5, 25 or 100 MiB.
Such cases take equally long; what their medians differ by is noise.
"""

from __future__ import annotations

from dataclasses import replace

from hpcbench.kinds.training.plan.held import held_of
from hpcbench.kinds.training.plan.predict import predict_stage
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.step import step_of
from hpcbench.kinds.training.plan.traffic import buckets
from hpcbench.kinds.training.plan.workload import Training


def program_of(work: Training) -> tuple[object, ...]:
    """Return what is equal for two trainings exactly if they run the same.

    It is the training without options that only cut calls into pieces (`StrategySpec.cuts`), the
    calls that are predicted of each rank, and how many gradients each of DDP's buckets holds.
    """
    spec = strategy(work.strategy)
    if spec is None or not spec.cuts:
        return (work,)
    layout, pieces = step_of(work).layout, []
    for stage in stages_of(work):
        filled = (buckets(held_of(work, stage).local.trained.tensors, layout.buckets.mib)
                  if layout.buckets else [])
        pieces.append((predict_stage(work, stage).calls, tuple(map(len, filled))))
    kept = tuple(option for option in work.options if option[0] not in spec.cuts)
    return (replace(work, options=kept), *pieces)

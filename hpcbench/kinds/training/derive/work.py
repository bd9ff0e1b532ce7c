"""What a step does: its samples, beside those of other steps of the same training."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from hpcbench.kinds.training.plan.registry import alone_by, trained_part
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.work import SAMPLES, Work

LAID_OUT = ("strategy", "options", "dp", "tp", "pp", "flops", "calls")
"""Fields of a training that depend on its layout on ranks."""


def work(item: CaseResult, record: Any | None) -> Work | None:
    """Return the samples of a step; None of what trains nothing."""
    of = training_of(item.case)
    if not of.trains:
        return None
    left = {*LAID_OUT, "batch_size"}
    step = (of.dtype, of.optimizer, *(f"{name}={value}" for name, value in of.unusual()),
            *([f"accumulation={of.accumulation}"] * (of.accumulation != 1)))
    return Work(
        task=(trained_part(of), *((name, value) for name, value in asdict(of).items()
                                  if name not in left)),
        title=" ".join((of.model, *step)),
        way=" ".join((of.strategy, *(f"{name}={value}" for name, value in of.options))),
        amount=of.global_batch, unit=SAMPLES, tokens=of.tokens, alone=alone_by(of),
        communication=record.exposure.exposed_share if record is not None else None)

"""The least memory that a model's training needs, however it is spread."""

from __future__ import annotations

from dataclasses import replace

from hpcbench.kinds.training.plan.held import held_of
from hpcbench.kinds.training.plan.memory import STATES, WEIGHT_BYTES
from hpcbench.kinds.training.plan.stages import Stage
from hpcbench.kinds.training.plan.workload import Training


def least_bytes(work: Training) -> int:
    """Return the bytes of parameters, gradients and states of the whole model, each once.

    That is what all ranks together hold where nothing is held twice, and no activation at all.
    """
    whole = Stage(blocks=tuple(range(work.layers)))
    own = held_of(replace(work, tp=1), whole).local
    return own.held_bytes + own.trained.elements * WEIGHT_BYTES * (1 + STATES[work.optimizer])

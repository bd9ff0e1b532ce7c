"""What a training will need, before it runs: memory, flops and traffic of a rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbench.plan.case import Training
from hpcbench.plan.training.memory import Memory, memory_of_stage
from hpcbench.plan.training.workload import shape_of


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one step needs of the rank that needs most.

    ``hardware_flops`` are what its device executes; ``wire_bytes`` are sizes of collectives times
    their busbw factors.
    """

    memory: Memory = field(default_factory=Memory)
    hardware_flops: int = 0
    wire_bytes: int = 0
    collectives: int = 0


def predict(work: Training) -> Prediction:
    """Return the prediction for the rank that needs most."""
    shape = shape_of(work)
    stages = [memory_of_stage(work, shape, stage) for stage in range(work.pp)]
    flops = 6 * work.parameters * work.tokens // (work.dp * work.tp * work.pp)
    return Prediction(max(stages, key=lambda memory: memory.total), flops)

"""What a training will need, before it runs: memory, flops and traffic of a rank. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from hpcbench.plan.case import Training
from hpcbench.plan.training.flops import recomputed as flops_again
from hpcbench.plan.training.layout import divided, layout_of
from hpcbench.plan.training.memory import Memory, memory_of
from hpcbench.plan.training.models import is_recomputed, shape_of
from hpcbench.plan.training.stages import Stage, whole
from hpcbench.plan.training.tensor_traffic import tensor_calls
from hpcbench.plan.training.traffic import (
    Calls,
    ddp_calls,
    fsdp_calls,
    together,
    zero1_calls,
)

EXECUTED = "counted"
"""The definition of FLOPs that counts what is executed."""


@dataclass(frozen=True, slots=True)
class Prediction:
    """What one step needs of a rank.

    ``hardware_flops`` are the rank's share of what all execute, ``calls`` its collectives.
    """

    memory: Memory = field(default_factory=Memory)
    hardware_flops: int = 0
    calls: tuple[Calls, ...] = ()

    @property
    def wire_bytes(self) -> int:
        """Return sizes of all collectives times their busbw factors."""
        return sum(item.wire_bytes for item in self.calls)

    @property
    def collectives(self) -> int:
        """Return how many collectives the rank calls."""
        return sum(item.count for item in self.calls)


def hardware_flops(work: Training, definition: str = EXECUTED) -> int:
    """Return the FLOPs of a step on all ranks with those that checkpointing adds.

    ``definition`` says how attention counts. Raises KeyError of unknown names.
    """
    return dict(work.flops)[definition] + flops_again(
        shape_of(work), work.global_batch, work.checkpointing, definition)


def predict(work: Training) -> Prediction:
    """Return the prediction for the rank that needs most memory."""
    return max((predict_stage(work, stage) for stage in stages_of(work)),
               key=lambda found: found.memory.total)


def stages_of(work: Training) -> list[Stage]:
    """Return what each pipeline rank has of the model; without a pipeline one has all."""
    return [whole(shape_of(work))]


def predict_stage(work: Training, stage: Stage) -> Prediction:
    """Return the prediction for a rank with these parts of the model."""
    ranks = work.dp * work.tp * work.pp
    return Prediction(memory_of(work, stage), hardware_flops(work) // ranks,
                      together(_calls(work, stage)))


def _calls(work: Training, stage: Stage) -> list[Calls]:
    layout, shape = layout_of(work), shape_of(work)
    local = divided(stage.tensors(shape), work.tp)
    found: list[Calls] = []
    if layout.is_sharded:
        blocks = [divided(stage.block(shape), work.tp)] * len(stage.blocks)
        root = [item for item in local if not item.name.startswith("blocks.")]
        found += fsdp_calls([*blocks, root], layout.shards, layout.copies, layout.parts,
                            reshard=layout.reshard, element_bytes=layout.kept.element)
    elif layout.bucket_mb is not None and work.dp > 1:
        found += ddp_calls(local, work.dp, layout.bucket_mb, layout.hook)
        found += [zero1_calls(local, work.dp)] if layout.state_ranks > 1 else []
    if work.tp > 1:
        recomputed = sum(is_recomputed(work.checkpointing, number) for number in stage.blocks)
        found += tensor_calls(shape, stage, layout.kept, layout.tokens, layout.parts, recomputed)
    return found

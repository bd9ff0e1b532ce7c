"""How much memory a rank needs to train: weights, gradients, optimizer state and activations.

Pure arithmetic from the extents; what an allocator keeps beyond that is not in it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.plan.case import Training
from hpcbench.plan.training.models import ModelShape, block_weights, parameters

WEIGHT_BYTES = 4
"""Weights, gradients and the states of optimizers are fp32 whatever the arithmetic is in."""
STATES: Mapping[str, int] = MappingProxyType({"adamw": 2, "sgd": 0})
"""Numbers of the optimizer for each weight; sgd has no momentum."""


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes on one rank at the end of the forward pass, when most is there."""

    parameters: int = 0
    gradients: int = 0
    optimizer: int = 0
    activations: int = 0

    @property
    def total(self) -> int:
        """Return all of it."""
        return self.parameters + self.gradients + self.optimizer + self.activations


def memory_of_stage(work: Training, shape: ModelShape, stage: int) -> Memory:
    """Return what a rank of a pipeline stage needs; without a pipeline there is stage 0 alone."""
    held = _held(work, shape, stage)
    return Memory(
        parameters=held * WEIGHT_BYTES, gradients=held * WEIGHT_BYTES,
        optimizer=held * WEIGHT_BYTES * STATES[work.optimizer],
        activations=_activations(work, shape, stage))


def _held(work: Training, shape: ModelShape, stage: int) -> int:
    """Return the parameters on a rank: tensor parallelism divides the matrices of blocks."""
    counted = parameters(shape)
    blocks = shape.layers // work.pp
    whole = counted.of_stage(stage == 0, blocks, stage == work.pp - 1)
    return whole - blocks * block_weights(shape) * (work.tp - 1) // work.tp


def _activations(work: Training, shape: ModelShape, stage: int) -> int:
    """Return the bytes that the forward pass of one part of an accumulation leaves."""
    tokens = work.batch_size // work.accumulation * shape.seq_length
    blocks = shape.layers // work.pp
    block = block_activation_bytes(shape, work.dtype, tokens, work.tp)
    if work.checkpointing == "full":
        kept = (blocks * tokens * shape.hidden * WEIGHT_BYTES) + block
    else:
        kept = blocks * block
    logits = tokens * shape.vocab * (WEIGHT_BYTES + DTYPE_BYTES[work.dtype])
    return kept + (logits if stage == work.pp - 1 else 0)


def block_activation_bytes(shape: ModelShape, dtype: str, tokens: int, tp: int) -> int:
    """Return the bytes that one block keeps for its backward pass."""
    size = DTYPE_BYTES[dtype]
    whole = 4 * shape.hidden  # inputs of both norms and of what follows them
    divided = (2 * shape.hidden + 2 * shape.kv_hidden
               + (3 if shape.gated else 2) * shape.inner)
    return tokens * (whole + divided // tp) * max(size, 2)

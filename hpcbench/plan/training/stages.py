"""Which parts of a model a rank has: all of it, or the stages of a pipeline."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.plan.training.models import ModelShape
from hpcbench.plan.training.tensors import (
    Tensor,
    block_tensors,
    embedding_tensors,
    head_tensors,
)


@dataclass(frozen=True, slots=True)
class Stage:
    """The blocks of a rank, whether it has the embedding and the head.

    ``under_way`` are the micro-batches of which it keeps activations at the same time.
    """

    blocks: tuple[int, ...]
    first: bool = True
    last: bool = True
    under_way: int = 1

    def tensors(self, shape: ModelShape) -> list[Tensor]:
        """Return the parameters of these parts."""
        found = embedding_tensors(shape) if self.first else []
        for number in self.blocks:
            found += block_tensors(shape, number)
        return found + (head_tensors(shape, alone=not self.first) if self.last else [])

    def block(self, shape: ModelShape) -> list[Tensor]:
        """Return the parameters of one block; all have the same extents."""
        return block_tensors(shape)


def whole(shape: ModelShape) -> Stage:
    """Return all parts of a model."""
    return Stage(tuple(range(shape.layers)))

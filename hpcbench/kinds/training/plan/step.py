"""What follows from a layout for the steps of a training."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.activations import Kept
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.registry import layout_of
from hpcbench.kinds.training.plan.shares import most_share
from hpcbench.kinds.training.plan.workload import CHUNKED, Training


@dataclass(frozen=True, slots=True)
class Step:
    """What follows from a layout for the steps of a training.

    Attributes:
        layout: how it lies on the ranks.
        kept: how activations are kept.
        parts: micro-batches of a step.
        samples: samples of one micro-batch of the replica that has most.
        tokens: tokens of these; 0 if samples are images.
    """

    layout: Layout
    kept: Kept
    parts: int
    samples: int
    tokens: int


def step_of(work: Training) -> Step:
    """Return the steps of a training."""
    layout, mixed = layout_of(work), work.dtype != "fp32"
    element = DTYPE_BYTES[work.dtype]
    kept = Kept(
        element=element, wide=element if layout.groups else 4,
        copies=mixed and layout.groups is None, adapters=layout.adapters, tp=work.tp,
        by_tokens=layout.by_tokens, by_words=layout.by_words,
        chunked=work.loss == CHUNKED)
    parts = work.accumulation * (layout.pipeline.microbatches if layout.pipeline else 1)
    samples = -(-most_share(work) // parts)
    return Step(layout, kept, parts, samples, samples * work.seq_length)

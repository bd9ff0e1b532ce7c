"""What every strategy is to the training step."""

from __future__ import annotations

import torch

from hpcbench.plan.case import Training
from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.training.phases import PhaseClock

Batch = tuple[torch.Tensor, torch.Tensor]
"""Tokens and the tokens to predict, both (samples, seq_length) int64, of one replica."""


class Strategy:
    """A model that is spread over the ranks of a group, its optimizer, and one step of both.

    The weights at the start are those of a single process with the same seed, on every layout.
    """

    def __init__(self, spec: Training, place: Place) -> None:
        self.spec = spec
        self.place = place

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the mean loss of this replica's samples, and leave gradients of the global mean.

        Gradients are those of the mean over all samples of all replicas, accumulation included.
        """
        raise NotImplementedError

    def update(self, phases: PhaseClock) -> None:
        """Let the optimizer step, and clear the gradients."""
        raise NotImplementedError

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return every gradient whole, fp32 on the CPU, by the name in the plain model.

        All ranks call it; ranks that hold none of a parameter return it too.
        """
        raise NotImplementedError

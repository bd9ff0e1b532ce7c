"""Strategy ``flat`` as workers run it: all gradients in one vector, averaged behind backward."""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import nn

from hpcbench.plugins import Batch, Model, PhaseClock, Replica


class Flat(Replica):
    """A replica that hides nothing of its communication: backward is over when it begins."""

    def wrap(self, model: Model) -> nn.Module:
        """Return the model as it is."""
        return model

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the loss; average the gradients of all ranks, on the group under test."""
        loss = super().forward_backward(batch, phases)
        gradients = [parameter.grad for parameter in self.plain.parameters()]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        for part in flat.tensor_split(int(self.spec.option("parts"))):
            dist.all_reduce(part, group=self.place.group)
        averaged = (flat / self.place.world_size).split([one.numel() for one in gradients])
        for gradient, mean in zip(gradients, averaged, strict=True):
            gradient.copy_(mean.view_as(gradient))
        phases.end("exchange")
        return loss

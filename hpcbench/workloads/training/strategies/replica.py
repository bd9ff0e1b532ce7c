"""A step of a rank that runs the whole model: micro-batches forward and backward, in turn."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.plan.workload import Training
from hpcbench.workloads.collectives.operation import Place
from hpcbench.workloads.training.memory import Held, held, local
from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.models.make import make_loss
from hpcbench.workloads.training.optimizers import make_optimizer
from hpcbench.workloads.training.phases import PhaseClock
from hpcbench.workloads.training.precision import INITIAL_SCALE, autocast, loss_scaler
from hpcbench.workloads.training.strategies.base import Batch, Strategy
from hpcbench.workloads.training.strategies.parts import build, whole_part


class Replica(Strategy):
    """A strategy that is a module around the whole model: subclasses wrap it.

    ``plain`` is the model, ``model`` what is called.
    """

    model: nn.Module

    def __init__(self, spec: Training, place: Place) -> None:
        super().__init__(spec, place)
        self.plain = self.build()
        self.model = self.wrap(self.plain)
        self.optimizer = self.make_optimizer()
        self._scaler = self.make_scaler()
        self._token_loss = make_loss(spec)

    def build(self) -> Model:
        """Return the model on the device, with the weights of the seed."""
        return build(self.spec, self.place.device, None, whole_part, whole_part)

    def wrap(self, model: Model) -> nn.Module:
        """Return what is called instead of the model."""
        raise NotImplementedError

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer of the wrapped model's parameters."""
        return make_optimizer(self.spec.optimizer, self.plain.parameters())

    def make_scaler(self) -> torch.amp.GradScaler:
        """Return what scales the loss of fp16; gradients are the same on all ranks, or DTensors."""
        return loss_scaler(self.spec.dtype, self.place.device)

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: only the last one's gradients are exchanged."""
        return nullcontext()

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        return autocast(self.spec.dtype, self.place.device)

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """See `Strategy`. Micro-batches are of equal size: the mean of their means is the mean."""
        parts = self.spec.accumulation
        total = torch.zeros((), device=self.place.device)
        micro_batches = zip(*(half.chunk(parts) for half in batch), strict=True)
        for number, (tokens, targets) in enumerate(micro_batches, start=1):
            with self.communicating(last=number == parts):
                with self.arithmetic():
                    loss = self._token_loss(self.model(tokens), targets) / parts
                phases.end("forward")
                self._scaler.scale(loss).backward()
                phases.end("backward")
            total += local(loss.detach())  # a DTensor where ranks share the logits
        return total

    def update(self, phases: PhaseClock) -> None:
        """Let the optimizer step, and clear the gradients."""
        self._scaler.step(self.optimizer)
        self._scaler.update()
        self.discard()
        phases.end("optimizer")

    def discard(self) -> None:
        """Clear the gradients without a step."""
        self.optimizer.zero_grad(set_to_none=True)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return every gradient whole, fp32 on the CPU, without the scale of the loss."""
        scale = self._scaler.get_scale()
        return {name: whole(parameter.grad) / scale
                for name, parameter in self.plain.named_parameters() if parameter.grad is not None}

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return every weight whole, fp32 on the CPU."""
        return {name: whole(parameter) for name, parameter in self.plain.named_parameters()}

    def held(self) -> Held:
        """Return the bytes that this rank holds of parameters, gradients and optimizer states."""
        return held(self.plain.parameters(), self.optimizer)

    def updates_skipped(self) -> bool:
        """Return whether fp16 gradients overflowed: the scale is then lowered, else it grows."""
        return bool(self._scaler.is_enabled() and self._scaler.get_scale() < INITIAL_SCALE)


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, of a sharded one all of it."""
    with torch.no_grad():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return full.detach().to("cpu", torch.float32, copy=True)

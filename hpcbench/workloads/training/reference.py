"""The same step in one process, in fp64: what every layout must come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from hpcbench.plan.workload import Training
from hpcbench.workloads.training.data import SEED, replica_batch
from hpcbench.workloads.training.models.make import make_model
from hpcbench.workloads.training.models.transformer import token_loss
from hpcbench.workloads.training.models.weights import init_weights
from hpcbench.workloads.training.optimizers import make_optimizer


class Reference:
    """Losses and gradients of the first global batch, with the weights of the seed.

    Every rank computes it alone, so nothing that is under test has a part in it. fp64 has so much
    smaller errors than any dtype under test that differences are the strategy's.

    ``losses`` are of each replica's samples; ``gradients`` are of the mean of all, fp64 on the CPU.
    """

    def __init__(self, spec: Training, device: torch.device) -> None:
        self._spec = replace(spec, checkpointing="none", compile=False)
        self._model = make_model(self._spec)
        init_weights(self._model, SEED)
        self._model.to(device, torch.float64)
        self.losses = [self._backward(replica, device) for replica in range(spec.dp)]
        self.gradients = {name: _gradient(parameter).to("cpu", copy=True)
                          for name, parameter in self._model.named_parameters()}
        self._model.to("cpu")
        self.weights = {name: parameter.detach().clone()
                        for name, parameter in self._model.named_parameters()}

    def _backward(self, replica: int, device: torch.device) -> float:
        tokens, targets = replica_batch(self._spec, 0, replica, device)
        loss = token_loss(self._model(tokens), targets)
        (loss / self._spec.dp).backward()
        return float(loss.detach())

    def updated(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights after one step of the optimizer from the seed with these gradients."""
        optimizer = make_optimizer(self._spec.optimizer, self._model.parameters())
        with torch.no_grad():
            for name, parameter in self._model.named_parameters():
                parameter.copy_(self.weights[name])
                parameter.grad = gradients[name].to(torch.float64)
        optimizer.step()
        return {name: parameter.detach() for name, parameter in self._model.named_parameters()}


def _gradient(parameter: torch.Tensor) -> torch.Tensor:
    assert parameter.grad is not None  # noqa: S101  (every parameter has a part in the loss)
    return parameter.grad

"""The same step in one process, in fp64: what every layout must come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch

from hpcbench.plan.training.models import shape_of
from hpcbench.plan.workload import Training
from hpcbench.workloads.training.data import SEED, Loader
from hpcbench.workloads.training.models.transformer import Transformer, token_loss
from hpcbench.workloads.training.models.weights import init_weights
from hpcbench.workloads.training.optimizers import make_optimizer
from hpcbench.workloads.training.strategies.base import Batch


class Reference:
    """Losses and gradients of the first global batch, with the weights of the seed.

    Every rank computes it alone, so nothing that is under test has a part in it. fp64 has so much
    smaller errors than any dtype under test that differences are the strategy's.

    ``gradients`` are of the mean of all samples, fp64 on the CPU.
    """

    def __init__(self, spec: Training, device: torch.device) -> None:
        self._spec = replace(spec, checkpointing="none")
        self._model = Transformer(shape_of(self._spec))
        init_weights(self._model, SEED)
        self._model.to(device, torch.float64)
        loader = Loader(spec, device)
        self._losses = [loss for replica in range(spec.dp) for loss in self._backward(
            loader.batch(0, replica * spec.batch_size, spec.batch_size))]
        self.gradients = {name: _gradient(parameter).to("cpu", copy=True)
                          for name, parameter in self._model.named_parameters()}
        self._model.to("cpu")
        self.weights = {name: parameter.detach().clone()
                        for name, parameter in self._model.named_parameters()}

    def _backward(self, batch: Batch) -> list[float]:
        """Add to the gradients those of as many samples as a replica has; return their losses."""
        losses = [token_loss(logits[None], targets[None])
                  for logits, targets in zip(self._model(batch[0]), batch[1], strict=True)]
        (sum(losses) / self._spec.global_batch).backward()
        return [float(loss.detach()) for loss in losses]

    def loss(self, first: int, count: int) -> float:
        """Return the mean loss of consecutive samples of the global batch."""
        return sum(self._losses[first:first + count]) / count

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

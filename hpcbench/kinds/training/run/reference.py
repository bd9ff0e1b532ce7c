"""The same step in one process, in fp64: what every layout must come to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import torch
from torch.func import functional_call

from hpcbench.kinds.training.plan.adapters import Adapters, is_narrow, low_rank_tensors
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.registry import adapters_of
from hpcbench.kinds.training.plan.step import step_of
from hpcbench.kinds.training.plan.tensors import Tensor, of_transposed
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, Training
from hpcbench.kinds.training.run.data import SEED, Loader
from hpcbench.kinds.training.run.models.build import make_model
from hpcbench.kinds.training.run.models.model import init_weights, mean_loss
from hpcbench.kinds.training.run.optimizers import make_optimizer
from hpcbench.kinds.training.run.strategies.base import Batch
from hpcbench.operations.dtypes import DTYPES
from hpcbench.operations.token_file import TokenFile


class Reference:
    """Losses and gradients of the first global batch, with the weights of the seed.

    Every rank computes it alone, so nothing that is under test has a part in it. fp64 has so much
    smaller errors than any dtype under test that differences are the strategy's.

    ``gradients`` are of the mean of all samples, fp64 on the CPU, and ``weights`` what they are of.
    A batch norm's statistics are those of one micro-batch of one replica, so the reference computes
    in these parts, too; ``buffers`` are what each replica has of them then, ``start`` at first.
    """

    def __init__(
        self, spec: Training, device: torch.device, file: TokenFile | None = None,
    ) -> None:
        self._spec = replace(spec, checkpointing="none", compile=False,
                             loss=CROSS_ENTROPY)
        self._model = make_model(self._spec)
        init_weights(self._model, SEED, device=device)
        self._trained = self.begin(device)
        self.start, self.parts = self._buffers(), step_of(spec).parts if spec.of_images else 1
        loader = Loader(spec, device, file)
        self._losses: list[float] = []
        self.buffers: list[dict[str, torch.Tensor]] = []
        for replica in range(spec.dp):
            self._model.load_state_dict(self.start, strict=False)
            self._losses += self._backward(
                loader.batch(0, replica * spec.batch_size, spec.batch_size))
            self.buffers.append(self._buffers())
        self.gradients = {name: weight.grad.to("cpu", copy=True)
                          for name, weight in self._trained.items()}
        self.weights = {name: weight.detach().to("cpu", copy=True)
                        for name, weight in self._trained.items()}

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Make the model fp64 on the device, and return what of it is trained."""
        self._model.to(device, torch.float64)
        return dict(self._model.named_parameters())

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of inputs."""
        return self._model(inputs)

    def loss(self, first: int, count: int) -> float:
        """Return the mean loss of consecutive samples of the global batch."""
        return sum(self._losses[first:first + count]) / count

    def _backward(self, batch: Batch) -> list[float]:
        """Add to the gradients those of as many samples as a replica has; return their losses."""
        inputs, targets = batch
        inputs = inputs.double() if inputs.is_floating_point() else inputs
        sample_losses: list[float] = []
        for part, wanted in zip(inputs.chunk(self.parts), targets.chunk(self.parts), strict=True):
            losses = [mean_loss(logits[None], one[None])
                      for logits, one in zip(self.logits(part), wanted, strict=True)]
            (sum(losses) / self._spec.global_batch).backward()
            sample_losses += [float(loss.detach()) for loss in losses]
        return sample_losses

    def _buffers(self) -> dict[str, torch.Tensor]:
        return {name: buffer.to("cpu", copy=True) for name, buffer in self._model.named_buffers()}

    def updated(self, gradients: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
        """Return the weights after one step of the optimizer from the seed with these gradients."""
        weights = {name: weight.clone().requires_grad_() for name, weight in self.weights.items()}
        optimizer = make_optimizer(self._spec.optimizer, list(weights.values()))
        for name, weight in weights.items():
            weight.grad = gradients[name].to(torch.float64)
        optimizer.step()
        return {name: weight.detach() for name, weight in weights.items()}


class LowRankReference(Reference):
    """The same of adapters: each product is with W + (alpha / rank) B A, written out.

    W is the weight as it is held: rounded to the dtype of the arithmetic, or what its 4 bits stand
    for. So what is compared is the arithmetic, and neither peft nor how 4 bits are unpacked is
    taken for granted.
    """

    def begin(self, device: torch.device) -> dict[str, torch.Tensor]:
        """Freeze the model as it is held, and return the adapters."""
        adapters = adapters_of(self._spec)
        assert adapters is not None  # noqa: S101  (the strategy has a rank)
        self._scale = int(self._spec.option("alpha")) / adapters.rank
        self._frozen = {
            name: self._held(adapters, name, weight.detach().to(device))
            for name, weight in self._model.named_parameters()}
        self._model.to(device, torch.float64)
        self._targets = {name: low_rank_tensors(Tensor(name, tuple(weight.shape)), adapters.rank)
                         for name, weight in self._model.named_parameters() if adapters.has(name)}
        return {part.name: self._model.initial(part.name, part.extents, SEED, device).to(
                    device, torch.float64).requires_grad_()
                for parts in self._targets.values() for part in parts}

    def _held(self, adapters: Adapters, name: str, weight: torch.Tensor) -> torch.Tensor:
        if is_narrow(shape_of(self._spec), name):
            weight = weight.to(DTYPES[self._spec.dtype])
        if adapters.packs(name):
            from hpcbench.kinds.training.run.models.nf4 import quantised, unpacked

            return unpacked(*quantised(weight))
        return weight.to(torch.float64)

    def logits(self, inputs: torch.Tensor) -> torch.Tensor:
        """Return what the model makes of inputs with the adapters added to its weights."""
        added = {name: self._scale * self._trained[b.name] @ self._trained[a.name]
                 for name, (a, b) in self._targets.items()}
        weights = {name: weight + (added[name].t() if of_transposed(name) else added[name])
                   if name in added else weight for name, weight in self._frozen.items()}
        return functional_call(self._model, weights, (inputs,))


def in_fp64(device: torch.device) -> torch.device:
    """Return a device, or the CPU instead of one that has no fp64."""
    return torch.device("cpu") if device.type == "mps" else device


def reference_of(
    spec: Training, device: torch.device, file: TokenFile | None = None,
) -> Reference:
    """Return the reference of a training; ``file``: its tokens, if they are open already."""
    return (LowRankReference if adapters_of(spec) else Reference)(spec, device, file)

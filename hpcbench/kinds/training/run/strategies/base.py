"""What every strategy is to the training step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Held, held, states
from hpcbench.kinds.training.run.phases import PhaseClock
from hpcbench.kinds.training.run.precision import INITIAL_SCALE
from hpcbench.kinds.training.run.strategies.mesh import Grid
from hpcbench.operations.place import Place

Batch = tuple[torch.Tensor, torch.Tensor]
"""Of one replica: tokens and those to predict, both (samples, seq_length) int64; or images
(samples, 3, height, width) fp32 and their classes (samples,) int64."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """What the exchange of gradients loses, beyond the rounding of the arithmetic.

    ``unit`` is the unit roundoff of the dtype in which gradients travel, ``floor`` the largest
    absolute error of one that is too small for it; both 0 where they travel in fp32. If it
    ``projects``, gradients are replaced by their projections (PowerSGD).
    """

    unit: float = 0.0
    floor: float = 0.0
    projects: bool = False


class Strategy:
    """A model that is spread over the ranks of a group, its optimizer, and one step of both.

    The weights at the start are those of a single process with the same seed, on every layout.
    Subclasses set ``optimizer`` and, where the loss of fp16 is scaled, ``scaler``.
    """

    optimizer: torch.optim.Optimizer
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    holds_loss = True
    """Whether this rank knows the loss: of a pipeline, only that with the last stage does."""
    settling = 0
    """How many calls of `forward_backward` pass before gradients are exchanged as ever after."""
    exchange = Exchange()
    uncounted = ""
    """Why the calls of a step cannot all be counted, if they cannot."""
    grid: Grid | None = None
    """The ranks in groups that the strategy opened, if it did."""

    def __init__(self, spec: Training, place: Place) -> None:
        self.spec = spec
        self.place = place

    def groups(self) -> Iterable[Any]:
        """Return the groups that a step calls, this rank's of each."""
        return [self.place.group, *(self.grid.groups.values() if self.grid else ())]

    def modules(self) -> Iterable[nn.Module]:
        """Return this rank's parts of the model, with the names of the plain model."""
        raise NotImplementedError

    def trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield this rank's parameters that are trained, by the name in the plain model.

        A tied weight of a last pipeline stage has the name that the stage has for it.
        """
        for module in self.modules():
            yield from ((name, one) for name, one in module.named_parameters()
                        if one.requires_grad)

    @property
    def replica(self) -> int:
        """Return which data-parallel replica this rank belongs to: they are consecutive ranks."""
        return self.place.rank // (self.spec.tp * self.spec.pp)

    @property
    def share(self) -> tuple[int, int]:
        """Return which samples of the next global batch are this replica's: first and count."""
        return self.replica * self.spec.batch_size, self.spec.batch_size

    def divide(self, shares: Sequence[int]) -> None:
        """Give each replica so many samples from now on; only where `is_dynamic`."""
        raise NotImplementedError

    def rebalance(self, phases: PhaseClock) -> None:
        """Agree at the end of a step on the shares of the next. All ranks call it."""

    def drag(self, seconds: float) -> None:
        """Let each sample take so much longer from now on, for tests of what is done about it."""
        raise NotImplementedError

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the mean loss of this replica's samples, and leave gradients of the global mean.

        Gradients are those of the mean over all samples of all replicas, accumulation included.
        What is returned where not `holds_loss` is not looked at.
        """
        raise NotImplementedError

    def update(self, phases: PhaseClock) -> None:
        """Let the optimizer step, and clear the gradients."""
        self.scaler.step(self.optimizer)
        self.scaler.update()
        self.discard()
        phases.end("optimizer")

    def discard(self) -> None:
        """Clear the gradients without a step."""
        self.optimizer.zero_grad(set_to_none=True)

    def full_gradients(self) -> dict[str, torch.Tensor]:
        """Return every gradient whole, fp32 on the CPU, by the name in the plain model.

        The scale of the loss is taken off. All ranks call it; ranks that hold none of a parameter
        return it too.
        """
        raise NotImplementedError

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return every weight whole, as `full_gradients` does gradients."""
        raise NotImplementedError

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return what this rank's parts of the model hold beside parameters: running statistics.

        By the name in the plain model, on the CPU, as they are: those of the replica's own samples.
        """
        return {name: buffer.to("cpu", copy=True) for module in self.modules()
                for name, buffer in module.named_buffers()}

    def frozen(self) -> dict[str, torch.Tensor]:
        """Return a copy of what this rank holds of each weight that is not trained, by its name."""
        return {}

    def replicated(self) -> bool:
        """Return whether every rank holds all weights, so that they must be the same everywhere."""
        return self.spec.tp == self.spec.pp == 1 and not any(
            isinstance(parameter, DTensor) for module in self.modules()
            for parameter in module.parameters())

    def held(self) -> Held:
        """Return the bytes that this rank holds of parameters, gradients and optimizer states."""
        return held((parameter for module in self.modules() for parameter in module.parameters()),
                    self.optimizer)

    def weights(self) -> Iterator[torch.Tensor]:
        """Yield all that this rank holds of the model: parameters, and what they are packed by."""
        return (one for module in self.modules() for one in module.parameters())

    def states(self) -> Iterator[torch.Tensor]:
        """Yield the optimizer's states that this rank holds."""
        return states(self.optimizer)

    def updates_skipped(self) -> bool:
        """Return whether fp16 gradients overflowed: the scale is then lowered, else it grows."""
        return bool(self.scaler.is_enabled() and self.scaler.get_scale() < INITIAL_SCALE)

    def close(self) -> None:
        """Close the groups that the strategy opened. All ranks call it."""
        if self.grid is not None:
            self.grid.close()

"""Meshes of ranks on the backend under test.

torch finds what it remembers of a mesh (placements, plans to redistribute) by ranks, device and
the names of dimensions, not by its groups: of two meshes of the same ranks, one on another backend
or on groups that are closed, it would take the other's groups. So names have the group's in them.

What every strategy is to the training step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hpcbench.backends.groups import open_lines
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Held, held, states
from hpcbench.kinds.training.run.phases import PhaseClock
from hpcbench.kinds.training.run.precision import INITIAL_SCALE
from hpcbench.operations.place import Place


def row_of(place: Place, name: str) -> DeviceMesh:
    """Return all ranks of the group under test, in a row."""
    return DeviceMesh.from_group(
        place.group, place.device.type, mesh_dim_names=(_named(name, place.group),))


class Grid:
    """The ranks of a place by named dimensions, the outermost first: neighbours differ in the last.

    ``groups`` are this rank's, by dimension. A group is opened for each dimension but for one that
    has all ranks. Opening is collective over all workers, of which the group under test has all.
    """

    def __init__(self, place: Place, extents: Mapping[str, int]) -> None:
        layout = torch.tensor(list(place.numbers)).reshape(list(extents.values()))
        self._opened: list[Any] = []
        self.groups = {name: self._line(place, layout.movedim(dim, -1))
                        for dim, name in enumerate(extents)}
        self._names = {name: _named(name, group) for name, group in self.groups.items()}
        self.mesh = DeviceMesh.from_group(
            list(self.groups.values()), place.device.type, mesh=layout,
            mesh_dim_names=tuple(self._names.values()))

    def _line(self, place: Place, layout: torch.Tensor) -> Any:
        """Return this rank's group along the last dimension of a layout."""
        lines = layout.reshape(-1, layout.shape[-1]).tolist()
        if len(lines) == 1:
            return place.group
        group = open_lines(place.group, lines, place.number)
        self._opened.append(group)
        return group

    def row(self, name: str) -> DeviceMesh | None:
        return self.mesh[self._names[name]] if name in self._names else None

    def close(self) -> None:
        """Destroy the groups that were opened and that this rank is in."""
        for group in self._opened:
            dist.destroy_process_group(group)
        self._opened.clear()


def grid_of(spec: Training, place: Place) -> Grid:
    """Return the ranks by replica, pipeline stage and tensor part; dimensions of 1 are left out."""
    degrees = {"dp": spec.dp, "pp": spec.pp, "tp": spec.tp}
    return Grid(place, {name: degree for name, degree in degrees.items() if degree > 1})


def _named(name: str, group: Any) -> str:
    return f"{name} of group {group.group_name}"


def settle(parameters: Iterable[nn.Parameter]) -> None:
    """Lay gradients out as their parameters are, once all of them are there.

    The gradient of a norm's weight is a sum over ranks that each saw some of the tokens: left as
    it is, the optimizer would add it up again in each of its operations. That of an embedding may
    be whole where its weight is divided.
    """
    for parameter in parameters:
        gradient = parameter.grad
        if isinstance(parameter, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


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

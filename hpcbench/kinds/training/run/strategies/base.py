"""The base of strategies: phases, optimizers, mixed precision, meshes.

torch caches what it knows of a mesh by ranks, device and names, not by its groups: a mesh of the
same ranks on another backend would get closed groups. So names have the group's in them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hpcbench.backends.groups import open_lines
from hpcbench.kinds.training.plan.spec import Groups, layout_of
from hpcbench.kinds.training.plan.workload import IN_8_BITS, Training
from hpcbench.kinds.training.run.memory import local, local_bytes, states
from hpcbench.operations.data import DTYPES
from hpcbench.operations.place import Place
from hpcbench.units import grouped

PHASES = ("data", "forward", "backward", "exchange", "forward_backward", "optimizer", "balance")
"""In the order of a step.

``backward`` ends when the rank has its own last gradient, ``exchange`` when all are exchanged. In a
pipeline ``exchange`` is the time between the passes of micro-batches: waiting, and messages.
Strategies that cannot distinguish forward from backward have ``forward_backward``."""


class PhaseClock:
    """Durations of the phases of each step, in ns; a phase may have several parts in one step.

    ``now`` returns a moment, ``between_ns`` the time between two."""

    def __init__(self, now: Callable[[], Any],
                 between_ns: Callable[[Any, Any], int] = lambda since, at: int(at - since)) -> None:
        self.steps: list[dict[str, int]] = []
        self.now, self.between_ns = now, between_ns
        self._begin: Any = None
        self._since: Any = None
        self._noted: list[tuple[dict[str, int], str, Any, Any, bool]] = []

    def begin(self) -> None:
        self.steps.append({})
        self._begin = self._since = self.now()

    def end(self, phase: str) -> None:
        at = self.now()
        self._noted.append((self.steps[-1], phase, self._since, at, True))
        self._since = at

    @property
    def noted(self) -> int:
        """Return how many phases were noted since `resolve`."""
        return len(self._noted)

    def arrive(self, what: str) -> None:
        """Note how long after the step's begin something is there; the last time counts."""
        self._noted.append((self.steps[-1], what, self._begin, self.now(), False))

    def resolve(self) -> None:
        """Fill in the phases since the last time; the device has nothing left to do."""
        for step, name, since, at, adds in self._noted:
            earlier = step.get(name, 0) if adds else 0
            step[name] = earlier + self.between_ns(since, at)
        self._noted.clear()


def phase_clock(
    device: torch.device, now_ns: Callable[[], int] = time.perf_counter_ns,
) -> PhaseClock:
    """Return the clock of a device; on a GPU by events, which are read between steps.

    Waiting for the device after each phase would forbid overlap and lengthen the step."""
    if device.type not in ("cuda", "mps"):
        return PhaseClock(now_ns)

    def now() -> Any:
        event = getattr(torch, device.type).Event(enable_timing=True)
        event.record()
        return event

    def between_ns(since: Any, at: Any) -> int:
        at.synchronize()
        return int(since.elapsed_time(at) * 1e6)  # ms to ns

    return PhaseClock(now, between_ns)


class Recipe(NamedTuple):
    """A class of optimizer and its settings; the rest are torch's defaults."""

    kind: Callable[..., torch.optim.Optimizer]
    settings: Mapping[str, Any]


def _in_8_bits(parameters: Any, **settings: Any) -> torch.optim.Optimizer:
    from bitsandbytes.optim import AdamW8bit  # it takes seconds, and not everyone has it

    made: torch.optim.Optimizer = AdamW8bit(parameters, **settings)
    return made


RECIPES: Mapping[str, Recipe] = MappingProxyType({
    "adamw": Recipe(torch.optim.AdamW, MappingProxyType({"lr": 1e-4, "weight_decay": 0.1})),
    "adamw8bit": Recipe(_in_8_bits, MappingProxyType({"lr": 1e-4, "weight_decay": 0.1})),
    "sgd": Recipe(torch.optim.SGD, MappingProxyType({"lr": 1e-2})),
})  # rates at which no model diverges on random tokens. sgd has no momentum, and so no states


def make_optimizer(name: str, parameters: Any) -> torch.optim.Optimizer:
    recipe = RECIPES[name]
    return recipe.kind(parameters, **recipe.settings)


class ApartOptimizer(torch.optim.Optimizer):  # type: ignore[misc]
    """An optimizer of plain tensors in place of this rank's parts of parameters.

    They have the ``dtype`` and are on the ``device``; where these are those of a parameter they are
    its own memory. So fp32 weights beside bf16 ones, states on the host, and optimizers that know
    no DTensor are one thing. ``inner`` has the states."""

    def __init__(self, name: str, parameters: Iterable[nn.Parameter], dtype: torch.dtype | None,
                 device: torch.device) -> None:
        """Hold tensors in ``dtype``; None: in their parameters'."""
        held = list(parameters)
        super().__init__([{"params": held}], {})
        self._apart = {
            one: nn.Parameter(part.to(device, dtype or part.dtype)) for one in held
            if (part := local(one.detach())).numel()}  # a small one may have none here
        self.inner = make_optimizer(name, [{"params": list(self._apart.values())}])

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        for parameter, own in self._apart.items():
            if parameter.grad is not None:
                own.grad = local(parameter.grad).to(own.device, own.dtype)
        self.inner.step()
        for parameter, own in self._apart.items():
            own.grad = None
            self.state[parameter] = dict(self.inner.state[own])
            weight = local(parameter)
            if (weight.dtype, weight.device) != (own.dtype, own.device):
                weight.copy_(own)
                self.state[parameter]["weight"] = own


def optimizer_of(
    spec: Training, parameters: Iterable[nn.Parameter], device: torch.device,
) -> torch.optim.Optimizer:
    """Return the optimizer of a training whose parameters are on the ``device``.

    Its groups hold parameters of one mesh each: torch updates a group together. There may be none.
    """
    held = list(parameters)
    groups = grouped((one.device_mesh if isinstance(one, DTensor) else None, one) for one in held)
    if not (spec.has_master or spec.offload_state) and (
            spec.optimizer != IN_8_BITS or groups.keys() <= {None}):
        return make_optimizer(spec.optimizer, [
            {"params": group} for group in groups.values() or [held]])
    return ApartOptimizer(spec.optimizer, held, torch.float32 if spec.has_master else None,
                          torch.device("cpu") if spec.offload_state else device)


INITIAL_SCALE = 2.0**10
"""The first factor of fp16 losses. torch's 2^16 would overflow in the first steps of some models,
and a step that is skipped is no step; this is a power of two, so it rounds nothing."""


def autocast(spec: Training, device: torch.device) -> AbstractContextManager[object]:
    if not spec.is_mixed:
        return nullcontext()
    context: AbstractContextManager[object] = torch.autocast(device.type, DTYPES[spec.dtype])
    return context


class Autocast(nn.Module):  # type: ignore[misc]
    """A module whose forward pass is in the arithmetic of a dtype."""

    def __init__(self, module: nn.Module, spec: Training, device: torch.device) -> None:
        super().__init__()
        self.module = module
        self._spec = spec
        self._device = device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with autocast(self._spec, self._device):
            return self.module(x)


class AgreedScaler(torch.amp.GradScaler):  # type: ignore[misc]
    """A scaler of ranks with different gradients: an overflow on one skips the step on all.

    As torch.distributed.fsdp.sharded_grad_scaler, also for DTensors and others together."""

    def __init__(self, dtype: str, device: torch.device, group: Any) -> None:
        super().__init__(device.type, init_scale=INITIAL_SCALE, enabled=dtype == "fp16")
        self._group = group
        # Otherwise made when a loss is scaled: ranks without one ask for it, too.
        self.scale(torch.zeros((), device=device))

    def _unscale_grads_(
        self, optimizer: torch.optim.Optimizer, inv_scale: torch.Tensor, found_inf: torch.Tensor,
        allow_fp16: bool,
    ) -> dict[torch.device, torch.Tensor]:
        gradients = [local(item.grad) for group in optimizer.param_groups
                     for item in group["params"] if item.grad is not None]
        torch._amp_foreach_non_finite_check_and_unscale_(gradients, found_inf, inv_scale)
        dist.all_reduce(found_inf, dist.ReduceOp.MAX, group=self._group)
        return {found_inf.device: found_inf}


def row_of(place: Place, name: str) -> DeviceMesh:
    """Return all ranks of the group under test, in a row."""
    return DeviceMesh.from_group(
        place.group, place.device.type, mesh_dim_names=(_named(name, place.group),))


class Grid:
    """The ranks of a place by named dimensions, the outermost first.

    ``groups`` are this rank's, by dimension; one of all ranks is not opened anew. Opening is
    collective over all workers."""

    def __init__(self, place: Place, extents: Mapping[str, int]) -> None:
        self._opened: list[Any] = []
        self.groups: dict[str, Any] = {}
        self.mesh = self.divide(place, extents)

    def divide(self, place: Place, extents: Mapping[str, int]) -> DeviceMesh:
        """Return the ranks by these dimensions; those that are there by name keep their groups."""
        for name in extents:
            if name not in self.groups:
                self.open(place, name, extents)
        layout = torch.tensor(list(place.numbers)).reshape(list(extents.values()))
        groups = {name: self.groups[name] for name in extents}
        return DeviceMesh.from_group(list(groups.values()), place.device.type, mesh=layout,
                                     mesh_dim_names=tuple(map(_named, groups, groups.values())))

    def _line(self, place: Place, layout: torch.Tensor) -> Any:
        lines = layout.reshape(-1, layout.shape[-1]).tolist()
        if len(lines) == 1:
            return place.group
        group = open_lines(place.group, lines, place.number)
        self._opened.append(group)
        return group

    def open(self, place: Place, name: str, extents: Mapping[str, int]) -> None:
        """Open the groups of one dimension of another division of the ranks."""
        layout = torch.tensor(list(place.numbers)).reshape(list(extents.values()))
        self.groups[name] = self._line(place, layout.movedim([*extents].index(name), -1))

    def row(self, *names: str, of: DeviceMesh | None = None) -> DeviceMesh | None:
        """Return the mesh of those of these dimensions that there are, None of none."""
        mesh = self.mesh if of is None else of
        found = tuple(named for name in names if name in self.groups
                      and (named := _named(name, self.groups[name])) in mesh.mesh_dim_names)
        return mesh[found] if found else None

    def close(self) -> None:
        for group in self._opened:
            dist.destroy_process_group(group)
        self._opened.clear()


def parallel_grid(spec: Training, place: Place) -> Grid:
    """Return the ranks by copy, shard, pipeline stage and tensor part; dimensions of 1 are left
    out, but shards where there are experts."""
    layout = layout_of(spec)
    groups, kept = layout.groups or Groups(), "shard" if layout.experts else ""
    degrees = {"replicate": groups.copies, "shard": groups.shards, "pp": spec.pp, "tp": spec.tp}
    grid = Grid(place, {name: degree for name, degree in degrees.items()
                        if degree > 1 or name == kept})
    if spec.cp > 1:
        grid.open(place, "cp", {"dp": spec.dp, "cp": spec.cp, "rest": spec.pp * spec.tp})
    return grid


def _named(name: str, group: Any) -> str:
    return f"{name} of group {group.group_name}"


def align_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """Lay gradients out as their parameters are, once all of them are there.

    Otherwise the optimizer would add up a norm's partial gradient in each of its operations; that
    of an embedding may be whole where its weight is divided."""
    for parameter in parameters:
        gradient = parameter.grad  # None of what is frozen
        if isinstance(gradient, DTensor) and gradient.placements != parameter.placements:
            parameter.grad = gradient.redistribute(placements=parameter.placements)


Batch = tuple[torch.Tensor, torch.Tensor]
"""The data of one replica: tokens and those to predict, both (samples, seq_length) int64; or images
(samples, 3, height, width) fp32 and their classes (samples,) int64."""


@dataclass(frozen=True, slots=True)
class GradientExchange:
    """The loss in exchanged gradients: unit roundoff of their dtype, and the largest absolute error
    of one that is too small for it; both 0 in fp32. ``projects``: PowerSGD."""

    unit: float = 0.0
    floor: float = 0.0
    projects: bool = False


class Strategy:
    """A model that is spread over the ranks of a group, its optimizer, and one step of both.

    The weights at the start are those of a single process with the same seed, on every layout.
    Subclasses set ``optimizer`` and, where the loss of fp16 is scaled, ``scaler``."""

    optimizer: torch.optim.Optimizer
    scaler = torch.amp.GradScaler("cpu", enabled=False)

    holds_loss = True
    """Whether this rank knows the loss: in a pipeline, only that with the last stage does."""
    warmup_calls = 0
    """Calls of `forward_backward` until the communication pattern is stable."""
    exchange = GradientExchange()
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
        """Yield this rank's trained parameters by plain name; a last stage's tied weight apart."""
        for module in self.modules():
            yield from ((name, one) for name, one in module.named_parameters() if one.requires_grad)

    @property
    def replica(self) -> int:
        return self.place.rank // self.spec.replica_ranks

    @property
    def share(self) -> tuple[int, int]:
        """Return the replica's samples of the next global batch: first and count."""
        return self.replica * self.spec.batch_size, self.spec.batch_size

    def divide(self, shares: Sequence[int]) -> None:
        """Give each replica so many samples from now on; only where `is_dynamic`."""
        raise NotImplementedError

    def rebalance(self, phases: PhaseClock) -> None:
        """Agree at the end of a step on the shares of the next. All ranks call it."""

    def follow(self, scores: Sequence[Any]) -> None:
        """Route tokens by these scores of each block with experts; only where `is_routed`."""

    def strays(self) -> Iterable[tuple[str, float]]:
        """Yield by what share the scores of a block's own choices are below the best, at most."""
        return ()

    def measured(self, step: Callable[[], object] | None) -> dict[str, float]:
        """Return numbers of this strategy alone, by metric: of the last step, and of more steps if
        they can be taken. All ranks call it."""
        return {}

    def slow_down(self, seconds: float) -> None:
        """Slow each sample of the batch down by so much from now on, for tests."""
        raise NotImplementedError

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the mean loss of this replica's samples, and leave gradients of the global mean.

        That is over all samples of all replicas, accumulation included. Ranks without `holds_loss`
        may return anything."""
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
        """Return every gradient whole and unscaled, fp32 on the CPU, by plain name. All ranks call
        it."""
        raise NotImplementedError

    def full_weights(self) -> dict[str, torch.Tensor]:
        """Return every weight whole, as `full_gradients` does gradients."""
        raise NotImplementedError

    def buffers(self) -> dict[str, torch.Tensor]:
        """Return running statistics of this rank's parts, by plain name, on the CPU."""
        return {name: buffer.to("cpu", copy=True) for module in self.modules()
                for name, buffer in module.named_buffers()}

    def frozen(self) -> dict[str, torch.Tensor]:
        return {}

    def replicated(self) -> bool:
        """Return whether every rank holds all weights, which must then be the same everywhere."""
        return self.spec.tp == self.spec.pp == 1 and not any(
            isinstance(parameter, DTensor) for module in self.modules()
            for parameter in module.parameters())

    def held(self) -> dict[str, int]:
        """Return this rank's bytes of parameters, gradients and optimizer states.

        Gradients are as before the optimizer clears them: of their parameter's shape and dtype."""
        trained = (one for module in self.modules() for one in module.parameters()
                   if one.requires_grad)
        return {name: sum(map(local_bytes, tensors)) for name, tensors in (
            ("parameters", self.weights()), ("gradients", trained),
            ("optimizer_state", self.states()))}

    def weights(self) -> Iterator[torch.Tensor]:
        """Yield all that this rank holds of the model: parameters, and scales of packed ones."""
        return (one for module in self.modules() for one in module.parameters())

    def states(self) -> Iterator[torch.Tensor]:
        """Yield the states of the optimizer that are on the device."""
        return (one for one in states(self.own_optimizer)
                if not self.spec.offload_state or one.device == self.place.device)

    @property
    def own_optimizer(self) -> torch.optim.Optimizer:
        """Return the optimizer that has this rank's states."""
        return self.optimizer

    def updates_skipped(self) -> bool:
        """Return whether fp16 gradients overflowed: the scale is then lowered, else it grows."""
        return bool(self.scaler.is_enabled() and self.scaler.get_scale() < INITIAL_SCALE)

    def close(self) -> None:
        """Close the groups that the strategy opened. All ranks call it."""
        if self.grid is not None:
            self.grid.close()

"""Steps of a rank that runs the whole model; fully_shard (FSDP2), and its sibling of copies."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Shard

from hpcbench.kinds.training.plan.spec import layout_of
from hpcbench.kinds.training.plan.workload import CROSS_ENTROPY, Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import build, make_loss, make_model
from hpcbench.kinds.training.run.models.fp8 import in_8_bits
from hpcbench.kinds.training.run.models.model import Model, Part, fill_part
from hpcbench.kinds.training.run.strategies import base
from hpcbench.operations.data import DTYPES
from hpcbench.operations.place import Place
from hpcbench.trace.schema import ARRIVAL

MOST = 32  # of more buckets so many are watched, from the first to the last


class GroupWatch:
    """Calls a callback with the name of each group of parameters whose gradients are there.

    A group is a block, or the root. Torch has no public hook for the moment before the exchange, so
    ``post_backward`` of the group is wrapped; in micro-batches that exchange nothing it is not
    called."""

    def __init__(self, model: nn.Module) -> None:
        self.on_bucket: Callable[[str], object] = lambda _name: None
        groups = [group for module in model.modules() if isinstance(module, FSDPModule)
                  for group in module._get_fsdp_state()._fsdp_param_groups
                  if any(one.sharded_param.requires_grad for one in group.fsdp_params)]
        groups.reverse()  # backward begins with the last block; the root ends it
        for number in evenly_spaced(len(groups)):
            self._watch(groups[number], f"{ARRIVAL}{number + 1}")

    def _watch(self, group: Any, name: str) -> None:
        exchange = group.post_backward

        def post_backward(*unused: Any) -> Any:
            if group.reduce_grads:
                self.on_bucket(name)
            return exchange(*unused)

        group.post_backward = post_backward


def evenly_spaced(count: int) -> list[int]:
    if count <= MOST:
        return list(range(count))
    return [number * (count - 1) // (MOST - 1) for number in range(MOST)]


class Replica(base.Strategy):
    """One rank trains alone; all others are compared with it. Subclasses wrap the model.

    ``plain`` is the model, ``model`` the called module; ``watch`` reports when gradients are there.
    """

    watch: Any = None

    def __init__(self, spec: Training, place: Place) -> None:
        super().__init__(spec, place)
        self.plain = self.build()
        self.model = self.wrap(self.plain)
        self.optimizer = self.make_optimizer()
        self.scaler = self.make_scaler()
        self._loss = make_loss(spec)

    def build(self) -> Model:
        return build(self.draft(), self.place.device, self.fill)

    def modules(self) -> tuple[nn.Module]:
        return (self.plain,)

    def draft(self) -> Model:
        with torch.device("meta"):
            model = make_model(self.spec)
        in_8_bits(self.spec, model)
        return model

    def fill(self, model: Model, part: Part) -> None:
        fill_part(model, part, self.place.device, SEED)

    def wrap(self, model: Model) -> nn.Module:
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return base.optimizer_of(self.spec, self.plain.parameters(), self.place.device)

    def make_scaler(self) -> torch.amp.GradScaler:
        return torch.amp.GradScaler(self.place.device.type, init_scale=base.INITIAL_SCALE,
                                    enabled=self.spec.dtype == "fp16")

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        return nullcontext()

    def exchanges(self, last: bool) -> bool:
        """Return whether gradients are exchanged in a part of an accumulation."""
        groups = layout_of(self.spec).groups
        return last or (groups is not None and groups.exchanges > 1)

    def arithmetic(self) -> AbstractContextManager[object]:
        return base.autocast(self.spec, self.place.device)

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        """Weigh the loss of a micro-batch by its share: replicas are averaged as if equal."""
        if self.watch:
            self.watch.on_bucket = phases.arrive
        parts, even = self.spec.accumulation, self.spec.batch_size
        total = torch.zeros((), device=self.place.device)
        micro_batches = zip(*(half.tensor_split(parts) for half in batch), strict=True)
        for number, (tokens, targets) in enumerate(micro_batches, start=1):
            with self.communicating(last=number == parts):
                with self.arithmetic():
                    loss = self.mean_loss(tokens, targets) / (even / len(tokens))
                phases.end("forward")
                _backward(self.scaler.scale(loss), phases, exchanges=(
                    self.spec.dp * self.spec.cp > 1 and self.exchanges(number == parts)))
            total += local(loss.detach())  # a DTensor where ranks share the logits
        return total * (even / len(batch[0]))

    def mean_loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        if self.spec.loss != CROSS_ENTROPY:
            loss: torch.Tensor = self.model(inputs, targets)
            return loss
        return self._loss(self.model(inputs), targets)

    def slow_down(self, seconds: float) -> None:
        self.model.register_forward_pre_hook(
            lambda _model, inputs: time.sleep(seconds * len(inputs[0])))

    def full_gradients(self) -> dict[str, torch.Tensor]:
        scale = self.scaler.get_scale()
        return {name: whole(parameter.grad) / scale
                for name, parameter in self.plain.named_parameters() if parameter.grad is not None}

    def full_weights(self) -> dict[str, torch.Tensor]:
        return {name: whole(parameter) for name, parameter in self.plain.named_parameters()}


def _backward(loss: torch.Tensor, phases: base.PhaseClock, *, exchanges: bool) -> None:
    """Run backward; the rest of an exchange is a phase of its own.

    Autograd calls the waits for the exchange (DDP, FSDP) after its graph, in the order of queueing.
    """
    if not exchanges:
        loss.backward()
        phases.end("backward")
        return
    queue = Variable._execution_engine.queue_callback
    loss.register_hook(lambda _: queue(lambda: phases.end("backward")))
    loss.backward()
    phases.end("exchange")


def whole(tensor: torch.Tensor) -> torch.Tensor:
    """Return a copy of a tensor, of a sharded one all of it."""
    with torch.no_grad():
        full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
        return full.detach().to("cpu", torch.float32, copy=True)


class Fsdp(Replica):
    """torch's fully_shard: a block's parameters are gathered when it runs, gradients scattered.

    With ``reshard`` blocks free them after forward and gather again in backward (ZeRO-3), without
    they keep them (ZeRO-2). The root always keeps its own: backward begins there."""

    def build(self) -> Model:
        sharder = Sharder(self.open_mesh(), self.spec)
        return build(self.draft(), self.place.device, self.fill, shard=sharder.shard)

    def wrap(self, model: Model) -> nn.Module:
        self.watch = GroupWatch(model)
        return model

    def open_mesh(self) -> DeviceMesh:
        return base.row_of(self.place, "shard")

    def arithmetic(self) -> AbstractContextManager[object]:
        return nullcontext()

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Set whether gradients are scattered; parameters are gathered in every micro-batch."""
        self.model.set_requires_gradient_sync(self.exchanges(last))
        return nullcontext()


class Hsdp(Fsdp):
    """Shards within each of ``replicas`` groups of consecutive ranks, copies between them."""

    def open_mesh(self) -> DeviceMesh:
        replicas = int(self.spec.option("replicas"))
        copies = {"replicate": replicas} if replicas > 1 else {}  # torch would sum over one rank
        self.grid = base.Grid(self.place, {**copies, "shard": self.place.world_size // replicas})
        return self.grid.mesh


class Sharder:
    """How parts of a model are spread over the replicas.

    Beside other dimensions copies are torch's sibling of ``fully_shard``, not DDP, which cannot
    exchange gradients of divided parameters or of backwards in two halves. Those with experts, some
    of which one rank may have alone, are shards of one rank."""

    def __init__(self, mesh: DeviceMesh | None, spec: Training) -> None:
        self._mesh = mesh  # None: there is one replica
        self._spec = spec
        layout = layout_of(spec)
        self._groups, self._has_experts = layout.groups, layout.experts is not None
        # gradients are reduced in the dtype of their weights
        self._policy = (MixedPrecisionPolicy(
            param_dtype=DTYPES[spec.dtype], reduce_dtype=torch.float32)
            if spec.is_mixed else MixedPrecisionPolicy())

    def shard(
        self, part: nn.Module, mesh: DeviceMesh | None = None, dimension: int = 0,
    ) -> None:
        """Spread a block, or a model whose blocks are, or a part of a block over ranks of its own.

        Parameters are cut in the ``dimension``."""
        mesh = mesh or self._mesh
        if mesh is None or self._groups is None:
            return
        if self._groups.shards > 1 or self._has_experts or self._spec.tp * self._spec.pp == 1:
            fully_shard(part, mesh=mesh, mp_policy=self._policy,
                        shard_placement_fn=(lambda _: Shard(dimension)) if dimension else None,
                        # None, of the root: keep
                        reshard_after_forward=None if isinstance(part, Model) else
                        self._groups.reshard)
        else:
            # torch has no public name for it; other layouts need no torch that has it
            from torch.distributed._composable.replicate_with_fsdp import replicate

            replicate(part, mesh=mesh, mp_policy=self._policy)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        return base.autocast(self._spec, device) if self._mesh is None else nullcontext()

    def synchronize(self, model: nn.Module, exchanges: bool) -> None:
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(exchanges)


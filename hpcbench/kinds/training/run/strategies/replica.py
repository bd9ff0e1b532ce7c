"""Steps of a rank that runs the whole model; fully_shard (FSDP2), and its sibling of copies."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import nn
from torch.autograd import Variable
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor

from hpcbench.kinds.training.plan.spec import layout_of
from hpcbench.kinds.training.plan.workload import CHUNKED, Training
from hpcbench.kinds.training.run.data import SEED
from hpcbench.kinds.training.run.memory import local
from hpcbench.kinds.training.run.models.build import build, make_loss, make_model
from hpcbench.kinds.training.run.models.model import Model, Part, fill_part
from hpcbench.kinds.training.run.strategies import base
from hpcbench.operations.data import DTYPES
from hpcbench.operations.place import Place
from hpcbench.trace.schema import ARRIVAL

MOST = 32
"""Of more buckets so many are watched, from the first to the last."""


class GroupWatch:
    """Calls a callback with the name of each group of parameters whose gradients are there.

    A group is a block, or what is no block; its gradients are exchanged together. The moment is
    that before torch begins with it: the group's own ``post_backward``, for which torch has no
    public hook. In micro-batches that exchange nothing it is not called.
    """

    def __init__(self, model: nn.Module) -> None:
        """Watch a model whose parts are spread already, or not at all."""
        self.on_bucket: Callable[[str], object] = lambda _name: None
        groups = list(_groups(model))[::-1]  # backward begins with the last block; the root ends it
        for number in spread(len(groups)):
            self._watch(groups[number], f"{ARRIVAL}{number + 1}")

    def _watch(self, group: Any, name: str) -> None:
        exchange = group.post_backward

        def post_backward(*unused: Any) -> Any:
            if group.reduce_grads:
                self.on_bucket(name)
            return exchange(*unused)

        group.post_backward = post_backward


def _groups(model: nn.Module) -> Iterator[Any]:
    """Yield the groups of a model that have something to train, the root's first."""
    for module in model.modules():
        if not isinstance(module, FSDPModule):
            continue
        for group in module._get_fsdp_state()._fsdp_param_groups:
            if any(one.sharded_param.requires_grad for one in group.fsdp_params):
                yield group


def spread(count: int) -> list[int]:
    """Return up to MOST of so many numbers from 0, the first and the last among them."""
    if count <= MOST:
        return list(range(count))
    return [number * (count - 1) // (MOST - 1) for number in range(MOST)]


class Replica(base.Strategy):
    """One rank trains alone: what all others are compared with. Subclasses wrap the model.

    ``plain`` is the model, ``model`` what is called; ``watch`` tells when gradients are there.
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
            return make_model(self.spec)

    def fill(self, model: Model, part: Part) -> None:
        fill_part(model, part, self.place.device, SEED)

    def wrap(self, model: Model) -> nn.Module:
        """Return what is called instead of the model: in a single process, itself."""
        return model

    def make_optimizer(self) -> torch.optim.Optimizer:
        return base.make_optimizer(self.spec.optimizer, self.plain.parameters())

    def make_scaler(self) -> torch.amp.GradScaler:
        """Return the scaler of fp16 losses, idle for others; all ranks have the same gradients."""
        return torch.amp.GradScaler(self.place.device.type, init_scale=base.INITIAL_SCALE,
                                    enabled=self.spec.dtype == "fp16")

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: only the last one's gradients are exchanged."""
        return nullcontext()

    def exchanges(self, last: bool) -> bool:
        """Return whether a micro-batch exchanges gradients, if there is anybody to do it with."""
        return last

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass."""
        return base.autocast(self.spec.dtype, self.place.device)

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        """See `Strategy`.

        Gradients of replicas are averaged as if all had the same number of samples: the loss of a
        micro-batch counts as its share of those. So gradients are of the mean over all samples
        of all replicas, however many each has.
        """
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
                _backward(self.scaler.scale(loss), phases,
                          exchanges=self.spec.dp > 1 and self.exchanges(number == parts))
            total += local(loss.detach())  # a DTensor where ranks share the logits
        return total * (even / len(batch[0]))

    def mean_loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """Return the mean loss of a micro-batch; a model that chunks it never has all logits."""
        if self.spec.loss == CHUNKED:
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
    """Run backward; if it ``exchanges`` gradients, what is left of that is a phase of its own.

    What waits for the exchange (DDP, FSDP) is called by autograd when its graph has been run.
    What was queued before it, when backward began, is called first.
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

    Blocks with ``reshard`` give up what they gathered after forward and gather it again in
    backward (ZeRO-3); without, they keep it until then (ZeRO-2). What is no block is the root,
    which always keeps it: backward begins there.
    """

    def build(self) -> Model:
        """Return the sharded model. There is never more of it whole on a rank than a block."""
        mesh, policy = self.open_mesh(), _policy(self.spec)

        def shard(part: nn.Module) -> None:
            fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=_gives_up(
                part, bool(self.spec.option("reshard"))))

        return build(self.draft(), self.place.device, self.fill, shard=shard)

    def wrap(self, model: Model) -> nn.Module:
        self.watch = GroupWatch(model)
        return model

    def open_mesh(self) -> DeviceMesh:
        """Return all ranks of the group under test, in a row."""
        return base.row_of(self.place, "shard")

    def arithmetic(self) -> AbstractContextManager[object]:
        """Return the context of a forward pass: parameters and inputs are cast by the policy."""
        return nullcontext()

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Set whether gradients are scattered; parameters are gathered in every micro-batch."""
        self.model.set_requires_gradient_sync(self.exchanges(last))
        return nullcontext()

    def exchanges(self, last: bool) -> bool:
        """Return whether a micro-batch exchanges gradients: the last one, or each."""
        groups = layout_of(self.spec).groups
        return last or (groups is not None and groups.exchanges > 1)


class Hsdp(Fsdp):
    """Shards within each of ``replicas`` groups of consecutive ranks, copies between them."""

    def open_mesh(self) -> DeviceMesh:
        """Return the ranks as replicas x shards, on groups that are opened for it."""
        replicas = int(self.spec.option("replicas"))
        self.grid = base.Grid(self.place, {
            "replicate": replicas, "shard": self.place.world_size // replicas})
        return self.grid.mesh


class Sharder:
    """How parts of a model are spread over the replicas among other dimensions, on a mesh of one.

    Both forms are torch's: ``fully_shard``, and its sibling that keeps copies. DDP is not used
    here, since it cannot exchange the gradients of parameters that are divided already, nor those
    of backwards in two halves.
    """

    def __init__(self, mesh: DeviceMesh | None, spec: Training) -> None:
        """``mesh`` None: there is one replica."""
        self._mesh = mesh
        self._spec = spec
        self._groups = layout_of(spec).groups
        self._policy = _policy(spec)

    def shard(self, part: nn.Module) -> None:
        """Spread a block, or a model whose blocks are."""
        if self._mesh is None or self._groups is None:
            return
        if self._groups.shards > 1:
            fully_shard(part, mesh=self._mesh, mp_policy=self._policy,
                        reshard_after_forward=_gives_up(part, self._groups.reshard))
        else:
            # torch has no public name for it; other layouts need no torch that has it
            from torch.distributed._composable.replicate_with_fsdp import replicate

            replicate(part, mesh=self._mesh, mp_policy=self._policy)

    def arithmetic(self, device: torch.device) -> AbstractContextManager[object]:
        """Return the context of a forward pass: what is spread is cast by its policy."""
        return base.autocast(self._spec.dtype, device) if self._mesh is None else nullcontext()

    def synchronize(self, model: nn.Module, last: bool) -> None:
        """Set whether backward exchanges gradients: with the last micro-batch only."""
        if isinstance(model, FSDPModule):
            model.set_requires_gradient_sync(last)


def _gives_up(part: nn.Module, reshard: bool) -> bool | None:
    """Return whether a part gives up what it gathered; None, of the root, is torch's way: keep."""
    return None if isinstance(part, Model) else reshard


def _policy(spec: Training) -> MixedPrecisionPolicy:
    """Return in what parameters are gathered; gradients are reduced in fp32."""
    if not base.is_mixed(spec.dtype):
        return MixedPrecisionPolicy()
    return MixedPrecisionPolicy(param_dtype=DTYPES[spec.dtype], reduce_dtype=torch.float32)

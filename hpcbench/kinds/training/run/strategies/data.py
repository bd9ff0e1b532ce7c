"""Data parallelism: every rank has the whole model; gradients are averaged in buckets (DDP)."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from inspect import signature

import torch
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hpcbench.kinds.training.plan.step import is_dynamic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.balance import Balancer
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.phases import PhaseClock
from hpcbench.kinds.training.run.strategies.arrivals import BucketWatch
from hpcbench.kinds.training.run.strategies.base import Batch, Exchange
from hpcbench.kinds.training.run.strategies.replica import Replica
from hpcbench.operations.place import Place

_EXCHANGES = {
    "none": Exchange(),
    "bf16": Exchange(unit=2.0**-8),
    "fp16": Exchange(unit=2.0**-11, floor=2.0**-25),  # half of the smallest subnormal number
    "powersgd": Exchange(projects=True),
}
_OWN_BUFFERS = {next(name for name in ("forward_sync_buffers", "broadcast_buffers")
                     if name in signature(DistributedDataParallel).parameters): False}
"""Running statistics are each replica's own, as in other strategies. torch 2.13 has a new name."""
_SETTLED = 2
"""Calls until DDP has ordered its buckets by the first backward (1), and PowerSGD may begin."""


class Data(Replica):
    """torch's DistributedDataParallel, which averages gradients while backward still runs."""

    settling = _SETTLED
    ddp: DistributedDataParallel

    def __init__(self, spec: Training, place: Place) -> None:
        super().__init__(spec, place)
        self._balancer = Balancer(spec, place, self.plain) if is_dynamic(spec) else None

    @property
    def share(self) -> tuple[int, int]:
        """Return which samples of the next global batch are this replica's: first and count."""
        return self._balancer.share if self._balancer else super().share

    def divide(self, shares: Sequence[int]) -> None:
        """Give each replica so many samples from now on. Only where they are balanced."""
        assert self._balancer is not None  # noqa: S101
        self._balancer.shares = tuple(shares)

    def rebalance(self, phases: PhaseClock) -> None:
        """Agree at the end of a step on the shares of the next. All ranks call it."""
        if self._balancer:
            self._balancer.exchange()
            phases.end("balance")

    def close(self) -> None:
        """Wait until the exchange of sample times is complete. All ranks call it."""
        if self._balancer:
            self._balancer.finish()

    def wrap(self, model: Model) -> nn.Module:
        """Return the model in DDP, on the group under test."""
        options = dict(self.spec.options)
        device = self.place.device
        self.ddp = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.place.group, bucket_cap_mb=options["bucket_mb"],
            **_OWN_BUFFERS,
            gradient_as_bucket_view=bool(options.get("bucket_view", False)))
        self.register(str(options.get("comm_hook", "none")))
        self._watch = BucketWatch(model.parameters(), int(options["bucket_mb"]))
        return self.ddp

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """See `Strategy`."""
        if self._balancer:
            self._balancer.begin(len(batch[0]))
        self._watch.on_bucket = phases.arrive
        loss = super().forward_backward(batch, phases)
        self._watch.settle()
        return loss

    def register(self, hook: str) -> None:
        """Install the communication hook that the option ``comm_hook`` names."""
        group = self.place.group
        self.exchange = _EXCHANGES[hook]
        if hook == "powersgd":
            state = powerSGD_hook.PowerSGDState(
                group, matrix_approximation_rank=1, start_powerSGD_iter=_SETTLED)
            self.ddp.register_comm_hook(state, powerSGD_hook.powerSGD_hook)
        elif hook != "none":
            compress = {"bf16": default_hooks.bf16_compress_hook,
                        "fp16": default_hooks.fp16_compress_hook}[hook]
            # DDP refuses torch's bf16 hook, by its name, where there is no NCCL; gloo adds bf16.
            self.ddp.register_comm_hook(group, lambda where, bucket: compress(where, bucket))

    def communicating(self, last: bool) -> AbstractContextManager[object]:
        """Return the context of a micro-batch: only the last one's gradients are exchanged."""
        return nullcontext() if last else self.ddp.no_sync()

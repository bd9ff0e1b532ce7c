"""Data parallelism: every rank has the whole model; gradients are averaged in buckets (DDP)."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook
from torch.nn.parallel import DistributedDataParallel

from hpcbench.workloads.training.models.base import Model
from hpcbench.workloads.training.strategies.base import Exchange
from hpcbench.workloads.training.strategies.replica import Replica

_EXCHANGES = {
    "none": Exchange(),
    "bf16": Exchange(unit=2.0**-8),
    "fp16": Exchange(unit=2.0**-11, floor=2.0**-25),  # half of the smallest subnormal number
    "powersgd": Exchange(projects=True),
}
_SETTLED = 2
"""Calls until DDP has ordered its buckets by the first backward (1), and PowerSGD may begin."""


class Data(Replica):
    """torch's DistributedDataParallel, which averages gradients while backward still runs."""

    settling = _SETTLED
    ddp: DistributedDataParallel

    def wrap(self, model: Model) -> nn.Module:
        """Return the model in DDP, on the group under test."""
        options = dict(self.spec.options)
        device = self.place.device
        self.ddp = DistributedDataParallel(
            model, device_ids=[device.index] if device.type == "cuda" else None,
            process_group=self.place.group, bucket_cap_mb=options["bucket_mb"],
            gradient_as_bucket_view=bool(options.get("bucket_view", False)))
        self.register(str(options.get("comm_hook", "none")))
        return self.ddp

    def register(self, hook: str) -> None:
        """Let gradients travel as the option ``comm_hook`` says."""
        group = self.place.group
        self.exchange = _EXCHANGES[hook]
        if dist.get_backend(group) == "fake":
            self.ddp.register_comm_hook(group, lambda where, bucket: _exchanged(where, bucket))
        elif hook == "powersgd":
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


def _exchanged(group: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
    """Return a bucket as it is: in dry runs, where nothing moves and DDP would be told nothing.

    torch's ``fake`` backend gives its callers no tensors, which DDP takes for an internal error.
    """
    dist.all_reduce(bucket.buffer(), group=group)
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(bucket.buffer())
    return future

"""A model, own or of library transformers, prepared by Accelerate and stepped by its calls.

Accelerate talks over the default group, which hpcbench keeps for itself: the group under test is
given to its DDP handler, or as its mesh."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from accelerate import (
    Accelerator,
    DistributedDataParallelKwargs,
    DistributedType,
    FullyShardedDataParallelPlugin,
    ParallelismConfig,
)
from accelerate.state import AcceleratorState, GradientState
from accelerate.utils import clear_environment, patch_environment
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn import functional as F

from hpcbench.plugins import Batch, CaseError, Grid, Model, PhaseClock, Place, Replica, Training


class OnGroup(DistributedDataParallelKwargs):  # type: ignore[misc]
    """Arguments of DistributedDataParallel: the group under test, the rest is Accelerate's."""

    def __init__(self, group: Any) -> None:
        super().__init__()
        self._group = group

    def to_kwargs(self) -> dict[str, Any]:
        """Return them; the base class would copy the group."""
        return {"process_group": self._group}


class OnMesh(ParallelismConfig):  # type: ignore[misc]
    """All ranks of a mesh of one dimension share the parameters."""

    def __init__(self, mesh: DeviceMesh) -> None:
        super().__init__()
        self.device_mesh = mesh

    @property
    def fsdp_dim_names(self) -> list[str]:
        """Return the name of the dimension, which is the group's own."""
        return list(self.device_mesh.mesh_dim_names)


class Accelerated(Replica):
    """Forward, ``Accelerator.backward``, step and zero_grad of what ``prepare`` returned."""

    warmup_calls = 2  # until DDP has ordered its buckets
    uncounted = "Accelerate has other groups of parameters than predicted, and sends buffers"

    def wrap(self, model: Model) -> nn.Module:
        """Prepare model and optimizer together, as FSDP wants it."""
        optimizer = super().make_optimizer()
        with clear_environment():  # Accelerate keeps some of its settings there
            self.accelerator = accelerator(self.spec, self.place)
            self.accelerator.ddp_handler = OnGroup(self.place.group)
            if self.spec.option("over") == "fsdp":
                self._choose_fsdp(model)
            model, self._prepared = self.accelerator.prepare(
                getattr(model, "library", model), optimizer)
        return model

    def _choose_fsdp(self, model: Model) -> None:
        """Have ``prepare`` take FSDP2. On CPUs the constructor leaves the plug-in out silently."""
        state, blocks = self.accelerator.state, {
            type(part.module).__name__ for part in model.parts() if part.number is not None}
        self.grid = Grid(self.place, {"shard": self.place.world_size})
        state.fsdp_plugin = FullyShardedDataParallelPlugin(
            fsdp_version=2, auto_wrap_policy="transformer_based_wrap",
            transformer_cls_names_to_wrap=sorted(blocks), cpu_ram_efficient_loading=False)
        if self.spec.dtype == "bf16":
            state.fsdp_plugin.set_mixed_precision("bf16")
        state.distributed_type = DistributedType.FSDP
        state.device_mesh = self.grid.mesh
        state.parallelism_config = OnMesh(self.grid.mesh)

    def make_optimizer(self) -> torch.optim.Optimizer:
        """Return the prepared one."""
        return self._prepared

    def forward_backward(self, batch: Batch, phases: PhaseClock) -> torch.Tensor:
        """Return the mean loss, and leave averaged gradients."""
        tokens, targets = batch
        if self.spec.library == "transformers":
            logits = self.model(input_ids=tokens, use_cache=False).logits
        else:
            logits = self.model(tokens)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), targets.flatten())
        phases.end("forward")
        self.accelerator.backward(loss)
        phases.end("backward")
        return loss.detach()


def accelerator(spec: Training, place: Place) -> Accelerator:
    """Return an Accelerator of the ranks of a place; its states are one for a process."""
    ranks = place.world_size
    if ranks > 1 and ranks != dist.get_world_size():
        raise CaseError(f"Accelerate knows all {dist.get_world_size()} ranks of a job or one, not "
                        f"{ranks}: give world_size all")
    AcceleratorState._reset_state(True)
    GradientState._reset_state()
    local = place.rank if place.device.type == "cpu" else place.device.index
    known = {"RANK": place.rank, "WORLD_SIZE": ranks, "LOCAL_RANK": local,
             "LOCAL_WORLD_SIZE": place.local_size,
             "MASTER_ADDR": "unused"} if ranks > 1 else {}  # as the ranks are connected
    with patch_environment(**known, OMP_NUM_THREADS=torch.get_num_threads()):
        return Accelerator(cpu=place.device.type == "cpu",
                           mixed_precision="bf16" if spec.dtype == "bf16" else "no")

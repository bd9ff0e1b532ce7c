"""Checkpoints that are written while the training goes on (torch.distributed.checkpoint).

A step waits until the one before is written, and until its own is copied: that is the stall. Ranks
agree over a group of their own, since the training uses the other meanwhile. One that is written
takes the place of the one before."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.groups import host_barrier
from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.predict import checkpoint_bytes
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.strategies.base import Strategy
from hpcbench.operations.job_folder import JobFolder
from hpcbench.operations.place import Place

_DCP = "torch.distributed.checkpoint"


class Checkpoints:
    """Checkpoints of one strategy; all ranks call each method together."""

    def __init__(self, spec: Training, place: Place) -> None:
        """Raise CaseError of a folder that cannot be written or has too little space."""
        # imported for these cases only, and before they are timed: it takes as long as torch
        self._dcp: Any = import_module(_DCP)
        self._place, self._every = place, spec.checkpoint_every
        self._folder = JobFolder(place, spec.checkpoint_folder, "hpcbench-checkpoint",
                                 2 * checkpoint_bytes(spec))
        self._group = dist.new_group(list(place.numbers), backend="gloo")
        self._under_way: Any = None
        self._stalls_s: list[float] = []

    def after(self, steps: int, strategy: Strategy) -> None:
        """Begin a checkpoint if one is due after so many steps. Raises CaseError of a full disk."""
        if steps % self._every:
            return
        since = time.perf_counter()
        self.finish()
        writer = self._dcp.FileSystemWriter(self._path(len(self._stalls_s)))
        self._under_way = self._dcp.async_save(
            dict(_state(strategy)), storage_writer=writer, process_group=self._group)
        self._stalls_s.append(time.perf_counter() - since)

    def finish(self) -> None:
        """Wait until the checkpoint under way is written."""
        under_way, self._under_way = self._under_way, None
        if under_way is None:
            return
        try:
            under_way.result()
        except self._dcp.CheckpointException as error:
            rank, (cause, _) = next(iter(sorted(error.failures.items())))
            words = getattr(cause, "strerror", None) or str(cause).partition("\n")[0]
            raise CaseError(f"checkpoint in {self._folder.base}, rank {rank}: {words}") from error
        if self._place.rank == 0:
            shutil.rmtree(self._path(len(self._stalls_s) - 2), ignore_errors=True)

    def _path(self, number: int) -> Path:
        return self._folder.path / str(number)

    def answer(self) -> dict[str, Any]:
        """Return this rank's stalls and the bytes of its files of the last checkpoint."""
        self.finish()
        own = self._path(len(self._stalls_s) - 1).glob(f"__{self._place.rank}_*")
        return {"stalls_s": self._stalls_s, "bytes": sum(file.stat().st_size for file in own)}

    def close(self) -> None:
        """Remove the files when no rank uses them any more."""
        if self._place.world_size > 1:
            host_barrier(self._group)
        dist.destroy_process_group(self._group)
        self._folder.close()


def _state(strategy: Strategy) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield what the rank would need to go on: parameters, buffers, and states of the optimizer."""
    names = {}
    for module in strategy.modules():
        for name, parameter in module.named_parameters():
            names[parameter] = name
            yield f"model.{name}", parameter.detach()
        yield from ((f"model.{name}", buffer) for name, buffer in module.named_buffers())
    for parameter, state in strategy.own_optimizer.state.items():
        yield from ((f"optimizer.{names[parameter]}.{key}", value) for key, value in state.items()
                    if isinstance(value, torch.Tensor))

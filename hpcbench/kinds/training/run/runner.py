"""The runner of trainings."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from hpcbench.backends.failures import out_of_memory
from hpcbench.kinds.kind import Runner
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.operation import TrainingOperation
from hpcbench.kinds.training.run.replay import ReplayOperation
from hpcbench.kinds.training.run.shortage import Room
from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class TrainingRunner(Runner):
    """Opens trainings."""

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Build model and strategy; if ``validate``, prove first that a step is right."""
        assert isinstance(work, Training)
        if work.communication == "only":
            return ReplayOperation(work, place)
        return TrainingOperation(work, place, validate=validate)

    @contextlib.contextmanager
    def around(self, work: Workload, device: torch.device, local_size: int) -> Iterator[None]:
        """Say of a training that runs out of memory what of it would have fitted."""
        assert isinstance(work, Training)
        room = Room(device, local_size)
        try:
            yield
        except Exception as error:
            if out_of_memory(error):
                raise room.shortage(work) from error
            raise

"""The runner of memory: trainings, opened as the runner of trainings opens them."""

from __future__ import annotations

import contextlib

import torch

from hpcbench.kinds.kind import Runner
from hpcbench.kinds.memory.plan.workload import MemoryWork
from hpcbench.kinds.memory.run.operation import MemoryOperation
from hpcbench.kinds.training.run.runner import TrainingRunner
from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class MemoryRunner(Runner):
    """Opens trainings whose memory is measured."""

    def __init__(self) -> None:
        self._local_size = 1

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Build model and strategy; nothing is proved before, since that takes memory, too."""
        assert isinstance(work, MemoryWork)
        return MemoryOperation(work, place, self._local_size)

    def around(
        self, work: Workload, device: torch.device, local_size: int,
    ) -> contextlib.AbstractContextManager[None]:
        """Say of a training that runs out of memory what of it would have fitted.

        This is entered before `open`, which divides the node's memory among its ranks.
        """
        assert isinstance(work, MemoryWork)
        self._local_size = local_size
        return TrainingRunner().around(work.training, device, local_size)

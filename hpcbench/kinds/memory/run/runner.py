"""The runner of memory: trainings, opened as the runner of trainings opens them."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator
from dataclasses import replace

import torch

from hpcbench.kinds.kind import Runner
from hpcbench.kinds.memory.plan.workload import MemoryWork
from hpcbench.kinds.memory.run.limit import Limits, limits_of, refused_memory
from hpcbench.kinds.memory.run.operation import MemoryOperation, followed
from hpcbench.kinds.training.plan.workload import SYNTHETIC, Training
from hpcbench.kinds.training.run.operation import TrainingOperation
from hpcbench.kinds.training.run.parity_model import small_training
from hpcbench.kinds.training.run.runner import TrainingRunner
from hpcbench.operations.operation import AnyOperation
from hpcbench.operations.place import Place
from hpcbench.plan.workload import Workload


class MemoryRunner(Runner):
    """Opens trainings whose memory is measured."""

    def __init__(self) -> None:
        self._local_size = 1
        self._limits: Limits | None = None

    def open(self, work: Workload, place: Place, *, validate: bool) -> AnyOperation:
        """Build model and strategy; nothing is proved before, since that takes memory, too."""
        assert isinstance(work, MemoryWork)
        if work.search is not None and self._limits is not None:
            taken_before(work.training, work.search.unit, place)
            self._limits.begin(work.search.limit_bytes)
        return MemoryOperation(work, place, self._local_size, self._limits)

    def around(
        self, work: Workload, device: torch.device, local_size: int,
    ) -> contextlib.AbstractContextManager[None]:
        """Say of a training that runs out of memory what of it would have fitted.

        Of a try of a search that is the search's to say: it is limited. This is entered before
        `open`, which divides the node's memory among its ranks.
        """
        assert isinstance(work, MemoryWork)
        self._local_size = local_size
        if work.search is not None:
            return self._limited(device)
        return TrainingRunner().around(work.training, device, local_size)

    @contextlib.contextmanager
    def _limited(self, device: torch.device) -> Iterator[None]:
        with limits_of(device, self._local_size) as self._limits:
            try:
                yield
            except Exception as error:
                if not (self._limits.limit and refused_memory(error)):
                    raise
                raise MemoryError(str(error).partition("\n")[0]) from error


def taken_before(training: Training, unit: int, place: Place) -> None:
    """Have this process take what is no part of a training, by steps on a small model.

    Those are modules that are imported late, threads and their stacks, and what libraries keep that
    communicate. All ranks call it.
    """
    small = small_training(replace(training, batch_size=unit, data=SYNTHETIC))
    steps = TrainingOperation(small, place, validate=False)
    for _ in range(2):
        steps.prepare()
        steps.run()
    steps.one_more(followed)
    steps.close()
    del steps
    gc.collect()

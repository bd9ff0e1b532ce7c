"""A training whose memory is measured: its steps, then two more that are followed."""

from __future__ import annotations

import resource
import time
from typing import Any

import psutil
import torch

from hpcbench.kinds.memory.plan.workload import MemoryWork
from hpcbench.kinds.memory.run.limit import Limits
from hpcbench.kinds.memory.run.live_storages import LiveStorages
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.operation import TrainingOperation
from hpcbench.kinds.training.run.parity import Disparity
from hpcbench.kinds.training.run.phases import phase_clock
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy
from hpcbench.measure.allocation import granted_memory
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.operations.place import Place

FOLLOWED = "storages of one step"
ALLOCATED = "cuda allocated"


class MemoryOperation:
    """Steps of a training. Its losses are checked; what proves a strategy would take memory."""

    def __init__(
        self, work: MemoryWork, place: Place, local_size: int, limits: Limits | None = None,
    ) -> None:
        """Build model and strategy; ``local_size`` ranks share the node's memory.

        ``limits`` of a try stand in place of the share.
        """
        self.name, self.place = work.name, place
        self._local_size, self._limits = local_size, limits
        if place.device.type == "cuda":
            torch.cuda.empty_cache()  # what earlier cases left is no overhead of this one
        self._steps = TrainingOperation(work.training, place, validate=False)

    def prepare(self) -> None:
        """Begin a row of phases."""
        self._steps.prepare()

    def run(self) -> None:
        """Take one step."""
        self._steps.run()

    def drag(self, seconds: float) -> None:
        """Make each step of this rank take longer, for tests."""
        self._steps.drag(seconds)

    def spoil(self) -> None:
        """Make the loss wrong, for tests of the check."""
        self._steps.spoil()

    def check(self) -> Disparity | None:
        """Return what is wrong with the last step."""
        return self._steps.check()

    def answer(self) -> dict[str, Any]:
        """Return the values beside the rows; ``memory`` and ``held`` are in bytes.

        ``memory`` has what the rank holds at the end of a step, its peak and its capacity, ``held``
        what the peak is made of. All ranks call it, and take two more steps.
        """
        answer = self._steps.answer()
        if self._steps.is_rehearsal:
            return answer
        device, outer = self.place.device, answer["memory"]
        taken = _taken(device, outer)
        parts = self._steps.one_more(followed)
        if device.type == "cuda":
            parts["temporary"] += max(int(outer["peak"]) - sum(parts.values()), 0)
        peak = sum(parts.values())
        of = ALLOCATED if device.type == "cuda" else FOLLOWED
        answer["held"] = {
            **parts, "overhead": None if taken is None else taken - peak, "of": of}
        outer |= {"peak": peak, "peak_of": of}
        size, of = (self._limits and self._limits.limit) or _capacity(device, self._local_size)
        answer["capacity"] = {"bytes": size, "of": of}
        return answer

    def close(self) -> None:
        """Close the training. All ranks call it."""
        self._steps.close()


def followed(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, int]:
    """Take two steps on a batch, and return what the second holds when it holds most.

    The first one shows what stays from step to step, such as buckets, before it is used again. All
    ranks call it.
    """
    live = LiveStorages(strategy.weights(), strategy.states())
    phases = phase_clock(strategy.place.device, time.perf_counter_ns)
    phases.begin()
    for _ in range(2):
        live.restart()
        with live:
            strategy.forward_backward(batch, phases)
            live.gradients_are_there()
            strategy.update(phases)
            strategy.rebalance(phases)
    return live.at_peak()


def _taken(device: torch.device, told: dict[str, Any]) -> int | None:
    """Return the bytes that the allocator took for the case; None if that is unknown.

    On the host, by how much the resident set grew.
    """
    if device.type == "cuda":
        return int(torch.cuda.max_memory_reserved(device))
    return int(told["peak"]) if told.get("peak_of") == "process growth" else None


def _capacity(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return the bytes that a rank could have, and what they are of."""
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1], "the GPU"
    if device.type == "mps":
        return torch.mps.recommended_max_memory(), "what macOS recommends for the GPU"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    if limit != resource.RLIM_INFINITY:
        return limit, "launch.memory_limit_gb"
    granted, whose = granted_memory(KernelFiles(), psutil.virtual_memory().total)
    return granted // local_size, f"{whose}, divided by the ranks of the node"

"""What a training that ran out of memory had, needed, and could have been instead."""

from __future__ import annotations

import resource

import psutil
import torch

from hpcbench.kinds.training.plan.fits import advice
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Peak, process_bytes


class OutOfMemory(MemoryError):
    """A training did not fit; the message proposes settings that would."""


class Room:
    """The memory that a rank may use, looked at before a case begins."""

    def __init__(self, device: torch.device, local_size: int) -> None:
        """``local_size`` ranks share a node's memory, where nothing else limits them."""
        self._peak = Peak(device)
        self.available, self._of = _available(device, local_size)

    def shortage(self, work: Training) -> OutOfMemory:
        """Return the error of a training for which it was too little."""
        peak = self._peak.read().get("peak")
        used = f"{int(peak) / 1e9:.3g}" if peak is not None else "unknown"
        return OutOfMemory(f"peak {used} GB of {self.available / 1e9:.3g} GB ({self._of}); "
                           f"{advice(work, self.available)}")


def _available(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return bytes that a rank can still take, and what they are of."""
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device), "the GPU's"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data = process_bytes("VmData")
    if limit != resource.RLIM_INFINITY and data is not None:
        return max(limit - data, 0), "left of launch.memory_limit_gb"
    return psutil.virtual_memory().available // local_size, "the node's, for each of its ranks"

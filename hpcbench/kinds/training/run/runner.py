"""The runner of trainings."""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator

import psutil
import torch

from hpcbench.backends.devices import out_of_memory
from hpcbench.kinds.kind import Runner
from hpcbench.kinds.training.plan.fits import advice
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import Peak
from hpcbench.kinds.training.run.operation import TrainingOperation
from hpcbench.kinds.training.run.replay import ReplayOperation
from hpcbench.measure.kernel_files import KernelFiles
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
        peak, (available, of) = Peak(device), _available(device, local_size)
        try:
            yield
        except Exception as error:
            if not out_of_memory(error):
                raise
            most = peak.read().get("peak")
            used = f"{int(most) / 1e9:.3g}" if most is not None else "unknown"
            raise OutOfMemory(f"peak {used} GB of {available / 1e9:.3g} GB ({of}); "
                              f"{advice(work, available)}") from error


class OutOfMemory(MemoryError):
    """A training did not fit; the message proposes settings that would."""


def _available(device: torch.device, local_size: int) -> tuple[int, str]:
    """Return the bytes that a rank can have, as `Peak` counts them, and what they are of.

    On CUDA that is with what it holds already (`backends.devices.free_bytes` is without): the peak
    there is of all that torch allocates. ``local_size`` ranks share a node's memory, where nothing
    else limits them.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device), "the GPU's"
    if device.type == "mps":
        left = torch.mps.recommended_max_memory() - torch.mps.driver_allocated_memory()
        return max(left, 0), "what macOS recommends for the GPU"
    limit, _ = resource.getrlimit(resource.RLIMIT_DATA)
    data = KernelFiles().process_bytes("VmData")
    if limit != resource.RLIM_INFINITY and data is not None:
        return max(limit - data, 0), "left of launch.memory_limit_gb"
    return psutil.virtual_memory().available // local_size, "the node's, for each of its ranks"

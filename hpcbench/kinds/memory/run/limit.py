"""The most that one try of a search may take, set where memory is handed out.

A worker that has it is used for one try. The limit is of what is taken from its beginning on: what
Python and torch hold before is no part of a training.
"""

from __future__ import annotations

import contextlib
import resource
from abc import ABC, abstractmethod
from collections.abc import Iterator
from pathlib import Path

import psutil
import torch

from hpcbench.backends.devices import out_of_memory
from hpcbench.errors import CaseError
from hpcbench.measure.allocation import granted_memory
from hpcbench.measure.kernel_files import KernelFiles

_SCORE = Path("/proc/self/oom_score_adj")
_FIRST_TO_KILL = "1000"
GIVEN = "as the sweep gives it"
_REFUSALS = ("can't start new thread", "could not create a primitive")
"""What Python and oneDNN say then beside what `out_of_memory` knows, in lower case."""


class Limits(ABC):
    """What limits this process; ``limit`` is in bytes with what it is of, None until it begins."""

    def __init__(self) -> None:
        self.limit: tuple[int, str] | None = None

    def begin(self, asked_bytes: int) -> None:
        """Limit what is taken from now on; 0 asks for what the rank can have here.

        Raises CaseError where that is nothing.
        """
        limit = self._begin(asked_bytes)
        if limit[0] <= 0:
            raise CaseError(f"largest_batch: {limit[1]} leaves nothing to a training")
        self.limit = limit

    @abstractmethod
    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        """Set the limit and return it."""

    @abstractmethod
    def end(self) -> None:
        """Take it back, so that an answer can be sent."""


class CudaLimits(Limits):
    """Limits torch's caching allocator, by all that it holds, in use or not."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device

    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        torch.cuda.empty_cache()
        free, total = torch.cuda.mem_get_info(self._device)
        held = torch.cuda.memory_reserved(self._device)
        most = min(asked_bytes, total - held) if asked_bytes else free
        torch.cuda.set_per_process_memory_fraction((held + most) / total, self._device)
        return most, GIVEN if asked_bytes else "what was free on the GPU"

    def end(self) -> None:
        """Let the allocator have all."""
        torch.cuda.set_per_process_memory_fraction(1.0, self._device)


class DataLimits(Limits):
    """Limits the data memory of this process (RLIMIT_DATA), and offers it to the kernel's killer.

    If memory runs out although all keep their limits, the kernel then ends this worker, not its
    supervisor, and nothing else that runs here.
    """

    def __init__(self, local_size: int) -> None:
        super().__init__()
        self._local_size = local_size
        self._before, self._hard = resource.getrlimit(resource.RLIMIT_DATA)

    def _begin(self, asked_bytes: int) -> tuple[int, str]:
        files = KernelFiles()
        held, resident = files.process_bytes("VmData"), files.process_bytes("VmRSS")
        if held is None or resident is None:
            raise CaseError("largest_batch: this system does not tell how much data a process has")
        limit = (asked_bytes, GIVEN) if asked_bytes else self._share(held, resident)
        with contextlib.suppress(OSError):  # nobody may be allowed to
            _SCORE.write_text(_FIRST_TO_KILL)
        if limit[0] > 0:
            resource.setrlimit(resource.RLIMIT_DATA, (held + limit[0], self._hard))
        return limit

    def end(self) -> None:
        """Let the process have what it could have before."""
        resource.setrlimit(resource.RLIMIT_DATA, (self._before, self._hard))

    def _share(self, held: int, resident: int) -> tuple[int, str]:
        """Return what is left of the limit on all workers, or of the rank's share of the node."""
        if self._before != resource.RLIM_INFINITY:
            return self._before - held, "what was left of launch.memory_limit_gb"
        granted, whose = granted_memory(KernelFiles(), psutil.virtual_memory().total)
        return (granted // self._local_size - resident,
                f"{whose}, divided by the ranks of the node, less what a worker has")


@contextlib.contextmanager
def limits_of(device: torch.device, local_size: int) -> Iterator[Limits]:
    """Give what limits this process on a device while this is entered, once it begins.

    ``local_size`` ranks share what is granted. Raises CaseError where nothing limits a process.
    """
    if device.type not in ("cpu", "cuda"):
        raise CaseError(f"largest_batch: nothing limits what torch takes on {device.type}")
    limits: Limits = CudaLimits(device) if device.type == "cuda" else DataLimits(local_size)
    try:
        yield limits
    finally:
        limits.end()


def refused_memory(error: Exception) -> bool:
    """Return whether an error within a limit is that memory was refused.

    The same steps were taken without a limit before, on a small model: no library lacks anything
    else. The stack of a thread counts as data, so it can be what is refused.
    """
    text = str(error).lower()
    return out_of_memory(error) or any(words in text for words in _REFUSALS)

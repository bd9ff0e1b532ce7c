"""What a rank's memory holds at the end of a step, and the most there was during the case."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn
from torch.distributed.tensor import DTensor

from hpcbench.measure.kernel_files import KernelFiles

_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class Held:
    """Bytes on this rank: exact sums over its tensors, of sharded ones the rank's own part.

    Gradients are as they are before the optimizer clears them.
    """

    parameters: int
    gradients: int
    optimizer: int


def held(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> Held:
    """Return what a rank holds. A gradient has its parameter's shape and dtype: torch insists."""
    own = list(parameters)
    return Held(parameters=sum(map(local_bytes, own)),
                gradients=sum(local_bytes(item) for item in own if item.requires_grad),
                optimizer=sum(map(local_bytes, states(optimizer))))


def states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    """Yield the states that an optimizer holds."""
    return (value for state in optimizer.state.values() for value in state.values()
            if isinstance(value, torch.Tensor))


def local_bytes(tensor: torch.Tensor) -> int:
    """Return the bytes of a tensor, or of this rank's part of a sharded one."""
    own = local(tensor)
    return int(own.numel() * own.element_size())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, in the same memory; of others all."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Peak:
    """The most memory that was in use since this was made.

    On a GPU that is what torch had allocated there, all of it. Apple's has no such count: what its
    driver holds for the process, which keeps what is freed, stands for it. The host tells only the
    resident set of the whole process: there it is the growth since this was made.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        elif device.type == "mps":
            torch.mps.empty_cache()
        else:
            # freed pages go back to the system: using them again would not look like growth
            with suppress(AttributeError, OSError):  # glibc has it
                ctypes.CDLL(None).malloc_trim(0)
            self._before = KernelFiles().process_bytes("VmRSS")
            self._known = _restart_peak()

    def read(self) -> dict[str, int | str]:
        """Return ``peak`` in bytes and what it is of (``peak_of``); nothing if it is unknown."""
        if self._device.type == "cuda":
            return {"peak": torch.cuda.max_memory_allocated(self._device),
                    "peak_of": "cuda allocated"}
        if self._device.type == "mps":
            return {"peak": torch.mps.driver_allocated_memory(), "peak_of": "mps driver held"}
        peak = KernelFiles().process_bytes("VmHWM")
        if not self._known or peak is None or self._before is None:
            return {}
        return {"peak": max(peak - self._before, 0), "peak_of": "process growth"}


def _restart_peak() -> bool:
    """Make the kernel's peak the present size; return whether it let us (proc(5): clear_refs)."""
    try:
        _CLEAR.write_text("5")
    except OSError:
        return False
    return True

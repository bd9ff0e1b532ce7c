"""What backends of torch.distributed that are written in Python share: the group, finished work.

Such a group is torch's ProcessGroup itself, not a backend inside one, so it answers what torch
asks of a group: its names, and its collectives under the names of several versions of torch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import timedelta
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist

Tensors = Sequence[torch.Tensor]
NEW_NAMES: Mapping[str, str] = MappingProxyType({
    "all_gather_single": "_allgather_base",
    "all_gather_single_coalesced": "allgather_into_tensor_coalesced",
    "all_to_all_single": "alltoall_base",
    "reduce_scatter_single": "_reduce_scatter_base",
    "reduce_scatter_single_coalesced": "reduce_scatter_tensor_coalesced",
})
"""Name of a method in torch 2.13 -> its name before; a group defines the old one, and has both."""


class FinishedWork(dist.Work):  # type: ignore[misc]
    """A call that was complete when it was returned; its future holds ``outputs``."""

    def __init__(self, outputs: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.outputs = list(outputs)

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        return True

    def is_completed(self) -> bool:
        """Return True."""
        return True

    def is_success(self) -> bool:
        """Return True: a failed call has raised."""
        return True

    def exception(self) -> None:
        """Return None: a failed call has raised."""

    def synchronize(self) -> None:
        """Do nothing: there is no stream."""

    def result(self) -> list[torch.Tensor]:
        """Return the outputs."""
        return self.outputs

    def get_future(self) -> Any:
        """Return a completed future, made only for those who ask (DistributedDataParallel does)."""
        devices = {tensor.device for tensor in self.outputs if tensor.is_cuda}
        future: Any = torch.futures.Future(devices=sorted(devices, key=str))
        future.set_result(self.outputs)
        return future


class PythonGroup(dist.ProcessGroup):  # type: ignore[misc]
    """A process group; subclasses define the collectives, with the arguments of torch's."""

    BACKEND = ""
    """The name under which torch knows the backend."""

    def __init_subclass__(cls) -> None:
        for new, old in NEW_NAMES.items():
            setattr(cls, new, getattr(cls, old))

    def __init__(self, rank: int, size: int) -> None:
        super().__init__(rank, size)
        self._rank, self._size = rank, size
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Return the name torch knows this backend by."""
        return self.BACKEND

    name = getBackendName

    def getGroupName(self) -> str:  # noqa: N802
        """Return the name that functional collectives find this group by."""
        return self._name

    def setGroupName(self, name: str) -> None:  # noqa: N802
        """Take the name torch gives."""
        self._name = name

    def getGroupDesc(self) -> str:  # noqa: N802
        """Return the description."""
        return self._description

    def setGroupDesc(self, description: str) -> None:  # noqa: N802
        """Take the description torch gives."""
        self._description = description

    _set_group_name, _set_group_desc = setGroupName, setGroupDesc
    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def shutdown(self) -> None:
        """Do nothing: there is nothing to free."""

    def _start_coalescing(self, device: Any) -> None:
        """Do nothing: each call is carried out when it is made."""

    def _end_coalescing(self, device: Any) -> FinishedWork:
        """Return finished work."""
        return FinishedWork([])


def register(name: str, opener: Callable[[Any, Any], PythonGroup]) -> None:
    """Make a backend known to torch.distributed; again does nothing.

    ``opener`` is called with torch's options of a group and the caller's ``pg_options``.
    """
    if not hasattr(dist.Backend, name.upper()):
        dist.Backend.register_backend(name, opener, extended_api=True, devices=["cpu", "cuda"])

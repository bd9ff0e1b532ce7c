"""A backend of torch.distributed on which nothing is communicated, and every call is counted.

Only for dry runs: one process is rank 0 of a world of any size. torch has such a backend, ``fake``,
but its futures hold nothing, which DistributedDataParallel refuses. What is gathered looks as if
all ranks had given the same; other outputs keep what was in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

NAME = "rehearsal"
Tensors = Sequence[torch.Tensor]
Tally = dict[str, list[int]]
"""Collective -> the sizes of its calls in bytes, as nccl-tests counts them, in order."""


class Done(dist.Work):  # type: ignore[misc]
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
        """Return True."""
        return True

    def exception(self) -> None:
        """Return None."""

    def synchronize(self) -> None:
        """Do nothing."""

    def result(self) -> list[torch.Tensor]:
        """Return the outputs."""
        return self.outputs

    def get_future(self) -> Any:
        """Return a completed future."""
        future: Any = torch.futures.Future()
        future.set_result(self.outputs)
        return future


class RehearsalGroup(dist.ProcessGroup):  # type: ignore[misc]
    """The collectives; arguments and results are those of torch's ProcessGroup of the same name."""

    def __init__(self, rank: int, size: int, tally: Tally) -> None:
        super().__init__(rank, size)
        self._tally = tally
        self._name = self._description = ""

    def getBackendName(self) -> str:  # noqa: N802  (torch's name)
        """Return the name torch knows this backend by."""
        return NAME

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
        """Do nothing."""

    abort = shutdown

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count an all_reduce of each tensor."""
        return self._each("all_reduce", tensors, tensors)

    def reduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count a reduce of each tensor."""
        return self._each("reduce", tensors, tensors)

    def broadcast(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count a broadcast of each tensor."""
        return self._each("broadcast", tensors, tensors)

    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor, opts: Any = None) -> Done:
        """Count an all_gather into one tensor."""
        _repeat(part, output)
        return self._each("all_gather", [output], [output])

    all_gather_single = _allgather_base

    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> Done:
        """Count an all_gather into each tensor."""
        for output, part in zip(outputs, inputs, strict=True):
            _repeat(part, output)
        return self._each("all_gather", outputs, outputs)

    all_gather_single_coalesced = allgather_into_tensor_coalesced

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        """Count an all_gather into each list of tensors."""
        for parts, own in zip(outputs, inputs, strict=True):
            for part in parts:
                if part.shape == own.shape:
                    part.copy_(own)
        return self._lists("all_gather", outputs, [part for parts in outputs for part in parts])

    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None,
    ) -> Done:
        """Count a reduce_scatter of one tensor."""
        return self._each("reduce_scatter", [source], [output])

    reduce_scatter_single = _reduce_scatter_base

    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> Done:
        """Count a reduce_scatter of each tensor."""
        return self._each("reduce_scatter", inputs, outputs)

    reduce_scatter_single_coalesced = reduce_scatter_tensor_coalesced

    def reduce_scatter(
        self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None,
    ) -> Done:
        """Count a reduce_scatter of each list of tensors."""
        return self._lists("reduce_scatter", inputs, outputs)

    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
        input_splits: Sequence[int], opts: Any = None,
    ) -> Done:
        """Count an all_to_all of one tensor."""
        return self._each("all_to_all", [source], [output])

    all_to_all_single = alltoall_base

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        """Count an all_to_all of a list of tensors."""
        return self._lists("all_to_all", [inputs], outputs)

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        """Count a gather of each list of tensors."""
        return self._lists("gather", outputs, [part for parts in outputs for part in parts])

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        """Count a scatter of each list of tensors."""
        return self._lists("scatter", inputs, outputs)

    def barrier(self, opts: Any = None) -> Done:
        """Count a barrier."""
        return self._each("barrier", [torch.empty(0)], [])

    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Done:
        """Count what is sent."""
        return self._each("send_recv", tensors, tensors)

    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Done:
        """Count nothing: what is received was sent by another rank."""
        return Done(tensors)

    def _start_coalescing(self, device: Any) -> None:
        """Do nothing."""

    def _end_coalescing(self, device: Any) -> Done:
        """Return finished work."""
        return Done([])

    def _each(self, collective: str, sized: Tensors, outputs: Tensors) -> Done:
        self._tally.setdefault(collective, []).extend(tensor.nbytes for tensor in sized)
        return Done(outputs)

    def _lists(self, collective: str, sized: Sequence[Tensors], outputs: Tensors) -> Done:
        self._tally.setdefault(collective, []).extend(
            sum(part.nbytes for part in parts) for parts in sized)
        return Done(outputs)


def _repeat(part: torch.Tensor, output: torch.Tensor) -> None:
    """Put a part into each place of a gathered tensor."""
    with torch.no_grad():
        output.view(-1, part.numel()).copy_(part.clone().reshape(1, -1))


def open_rehearsal(world_size: int, tally: Tally) -> Any:
    """Return the group of a world in which this process is rank 0, whose calls ``tally`` counts.

    The world that this process was in before is destroyed. Groups that are opened in it count in
    the same tally.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    if not hasattr(dist.Backend, NAME.upper()):
        dist.Backend.register_backend(NAME, _open, extended_api=True, devices=["cpu"])
    dist.init_process_group(NAME, store=dist.HashStore(), rank=0, world_size=world_size,
                            pg_options=tally)
    return dist.group.WORLD


def _open(options: Any, tally: Tally | None) -> RehearsalGroup:
    """Return the group that torch asks for."""
    if tally is None:
        tally = dist.group.WORLD._tally
    return RehearsalGroup(options.group_rank, options.group_size, tally)

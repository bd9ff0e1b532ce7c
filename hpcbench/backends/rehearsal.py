"""A backend of torch.distributed on which nothing is communicated, and every call is counted.

For dry runs, in which one process is a rank of a world of any size, and for steps without
communication, whose ranks are real. torch has such a backend, ``fake``, but its futures hold
nothing, which DistributedDataParallel refuses. All outputs are finite. What is gathered looks as if
all ranks had given the same, and what is scattered is the rank's own part. What is received is
noise, and other outputs keep what was in them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist

from hpcbench.backends.ledger import Ledger, Lines, Wait, kept
from hpcbench.backends.python_group import FinishedWork, PythonGroup, Tensors, register

NAME = "rehearsal"


class Done(FinishedWork):
    """A call that was complete when it was returned.

    ``number`` is the entry of the call in the ledger, if calls are kept there.
    """

    def __init__(self, outputs: Iterable[torch.Tensor], ledger: Ledger | None = None) -> None:
        """``ledger``: where it is entered that somebody waits."""
        super().__init__(outputs)
        self.number: int | None = None
        self._ledger = ledger

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Return at once."""
        if self._ledger and self._ledger.program is not None and self.number is not None:
            self._ledger.program.append(Wait(self.number))
        return True


class RehearsalGroup(PythonGroup):
    """The collectives; arguments and results are those of torch's ProcessGroup of the same name."""

    BACKEND = NAME

    def __init__(self, rank: int, size: int, ledger: Ledger, lines: Lines | None) -> None:
        super().__init__(rank, size)
        self.ledger = ledger
        self.lines = lines

    abort = PythonGroup.shutdown

    @kept
    def allreduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count an all_reduce of each tensor."""
        return self._done("all_reduce", tensors, tensors)

    @kept
    def reduce(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count a reduce of each tensor."""
        return self._done("reduce", tensors, tensors)

    @kept
    def broadcast(self, tensors: Tensors, opts: Any = None) -> Done:
        """Count a broadcast of each tensor."""
        return self._done("broadcast", tensors, tensors)

    @kept
    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor, opts: Any = None) -> Done:
        """Count an all_gather into one tensor."""
        _repeat(part, output)
        return self._done("all_gather", [output], [output])

    @kept
    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> Done:
        """Count an all_gather into each tensor."""
        for output, part in zip(outputs, inputs, strict=True):
            _repeat(part, output)
        return self._done("all_gather", outputs, outputs)

    @kept
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        """Count an all_gather into each list of tensors."""
        for parts, own in zip(outputs, inputs, strict=True):
            for part in parts:
                if part.shape == own.shape:
                    part.copy_(own)
        return self._done("all_gather", outputs, [part for parts in outputs for part in parts])

    @kept
    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None,
    ) -> Done:
        """Count a reduce_scatter of one tensor."""
        self._own_part(output, source)
        return self._done("reduce_scatter", [source], [output])

    @kept
    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> Done:
        """Count a reduce_scatter of each tensor."""
        for output, source in zip(outputs, inputs, strict=True):
            self._own_part(output, source)
        return self._done("reduce_scatter", inputs, outputs)

    @kept
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        """Count a reduce_scatter of each list of tensors."""
        for output, parts in zip(outputs, inputs, strict=True):
            output.detach().copy_(parts[self._rank])
        return self._done("reduce_scatter", inputs, outputs)

    @kept
    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
        input_splits: Sequence[int], opts: Any = None,
    ) -> Done:
        """Count an all_to_all of one tensor."""
        shared = min(output.shape[0], source.shape[0])
        output.detach().zero_()[:shared].copy_(source[:shared])
        return self._done("all_to_all", [source], [output])

    @kept
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Done:
        """Count an all_to_all of a list of tensors."""
        return self._done("all_to_all", [inputs], outputs)

    @kept
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Done:
        """Count a gather of each list of tensors."""
        return self._done("gather", outputs, [part for parts in outputs for part in parts])

    @kept
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Done:
        """Count a scatter of each list of tensors."""
        return self._done("scatter", inputs, outputs)

    @kept
    def barrier(self, opts: Any = None) -> Done:
        """Count a barrier."""
        return self._done("barrier", [torch.empty(0)], [])

    @kept
    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> Done:
        """Count what is sent."""
        self.ledger.count("send_recv", [tensor.nbytes for tensor in tensors])
        return Done(tensors, self.ledger)

    @kept
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> Done:
        """Receive noise; another rank would count it."""
        for tensor in tensors:
            self.ledger.fill(tensor.detach())
        return Done(tensors, self.ledger)

    def _done(
        self, collective: str, sized: Sequence[torch.Tensor | Tensors], outputs: Tensors,
    ) -> Done:
        """Count a call of the size of each tensor, or of each list of tensors."""
        self.ledger.count(collective, [
            one.nbytes if isinstance(one, torch.Tensor) else sum(part.nbytes for part in one)
            for one in sized])
        return Done(outputs)

    def _own_part(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """Put this rank's part of what is to be reduced into the output."""
        with torch.no_grad():
            output.view(-1).copy_(source.reshape(self._size, -1)[self._rank])


def _repeat(part: torch.Tensor, output: torch.Tensor) -> None:
    """Put a part into each place of a gathered tensor."""
    with torch.no_grad():
        output.view(-1, part.numel()).copy_(part.clone().reshape(1, -1))


def open_rehearsal(world_size: int, ledger: Ledger, rank: int = 0) -> Any:
    """Return the group of a world in which this process is ``rank``, whose calls ``ledger`` has.

    The world that this process was in before is destroyed. Groups that are opened in it count in
    the same ledger.
    """
    if dist.is_initialized():
        dist.destroy_process_group()
    register(NAME, _open)
    dist.init_process_group(NAME, store=dist.HashStore(), rank=rank, world_size=world_size,
                            pg_options=(ledger, None))
    return dist.group.WORLD


def open_silent(ranks: Sequence[int], ledger: Ledger, lines: Lines | None = None) -> Any:
    """Return a group of real ranks that communicates nothing, whose calls ``ledger`` has.

    All ranks of the default group call this. ``lines``: see `ledger.Call`.
    """
    register(NAME, _open)
    return dist.new_group(list(ranks), backend=NAME, pg_options=(ledger, lines))


def is_counted(group: Any) -> bool:
    """Return whether calls of a group are counted: it is one of a world that does not exist."""
    return bool(dist.get_backend(group) == NAME and group.ledger.counts)


def _open(options: Any, own: tuple[Ledger, Lines | None] | None) -> RehearsalGroup:
    """Return the group that torch asks for; one that it opens by itself counts as the default."""
    ledger, lines = own or (dist.group.WORLD.ledger, None)
    return RehearsalGroup(options.group_rank, options.group_size, ledger, lines)

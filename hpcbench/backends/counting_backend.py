"""A backend of torch.distributed that communicates nothing and counts every call.

For dry runs (one process is a rank of any world) and for steps without communication on real ranks.
torch's ``fake`` backend has empty futures, which DistributedDataParallel refuses. All outputs are
finite: gathers repeat the rank's own part, scatters return it, receives give noise, and other
outputs keep their values."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from datetime import timedelta
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch
import torch.distributed as dist

from hpcbench.backends.python_group import FinishedWork, PythonGroup, Tensors, exchanged, register

Tally = dict[str, list[int]]
"""Collective -> the sizes of its calls in bytes, as nccl-tests counts them, in order."""
Lines = Sequence[Sequence[int]]
"""The groups that ranks are divided into: the ranks of each."""


class TensorSpec(NamedTuple):
    """A tensor without its values."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class RecordedCall(NamedTuple):
    """A call of a method of torch's ProcessGroup, with `TensorSpec` for tensors.

    ``lines`` identify its group: the line that has this rank; None: the first group."""

    lines: Lines | None
    method: str
    arguments: tuple[Any, ...]


class Wait(NamedTuple):
    """A wait for the send or receive of an earlier entry of the program."""

    call: int


class CallLog:
    """The calls of all groups of one world.

    ``program`` is None before `keep`, then all calls since, in order. ``opened`` are the divisions
    of ranks that groups were opened for, in order."""

    def __init__(self, *, counts: bool = True) -> None:
        """``counts`` False: the tally stays empty, so that any number of calls leaves nothing."""
        self.tally: Tally = {}
        self.program: list[RecordedCall | Wait] | None = None
        self.opened: list[Lines] = []
        self.counts = counts
        self._noise: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._received = 0

    def keep(self) -> None:
        self.program = []

    def count(self, collective: str, sizes: Sequence[int]) -> None:
        if self.counts:
            self.tally.setdefault(collective, []).extend(sizes)

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill a received tensor: floats with new noise each time, so that weights do not drift one
        way; integers with ones, since torch's pipelines take a 1 for a yes."""
        if not tensor.is_floating_point():
            tensor.fill_(1)
            return
        self._received += 1
        first, count = self._received * _STEP % _SPARE, tensor.numel()
        key = tensor.dtype, tensor.device
        noise = self._noise.get(key)
        if noise is None or noise.numel() < count + _SPARE:
            generator = torch.Generator().manual_seed(0)
            noise = torch.randn(count + _SPARE, generator=generator).to(tensor.device, tensor.dtype)
            self._noise[key] = noise
        tensor.copy_(noise[first:first + count].view(tensor.shape))


_SPARE, _STEP = 4096, 997
"""Elements: noise is longer than a received tensor by the first, and begins the second later."""
Method = TypeVar("Method", bound=Callable[..., Any])


def recorded(method: Method) -> Method:
    """Log calls of a group's method; the group has ``call_log`` and ``lines``."""
    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        arguments += tuple(named.values())
        program = self.call_log.program
        if program is None:
            return method(self, *arguments)
        program.append(RecordedCall(self.lines, method.__name__, blank(arguments)))
        work = method(self, *arguments)
        work.number = len(program) - 1
        return work

    return call  # type: ignore[return-value]


def blank(value: Any) -> Any:
    """Return a value with `TensorSpec` for every tensor in its tuples and lists."""
    if isinstance(value, torch.Tensor):
        return TensorSpec(tuple(value.shape), value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return tuple(map(blank, value))
    return value


COUNTING_BACKEND = "dry_run"


class CompletedCall(FinishedWork):
    """A call that was complete when it returned; ``number`` is its entry in the log, if kept."""

    def __init__(self, outputs: Iterable[torch.Tensor], call_log: CallLog | None = None) -> None:
        """``call_log`` records each wait for this call."""
        super().__init__(outputs)
        self.number: int | None = None
        self._call_log = call_log

    def wait(self, timeout: timedelta | None = None) -> bool:
        if self._call_log and self._call_log.program is not None and self.number is not None:
            self._call_log.program.append(Wait(self.number))
        return True


class CountingGroup(PythonGroup):
    """The collectives; arguments and results are those of torch's ProcessGroup of the same name."""

    BACKEND = COUNTING_BACKEND

    def __init__(self, rank: int, size: int, call_log: CallLog, lines: Lines | None) -> None:
        super().__init__(rank, size)
        self.call_log = call_log
        self.lines = lines

    abort = PythonGroup.shutdown

    @recorded
    def allreduce(self, tensors: Tensors, opts: Any = None) -> CompletedCall:
        return self._done("all_reduce", tensors, tensors)

    @recorded
    def reduce(self, tensors: Tensors, opts: Any = None) -> CompletedCall:
        return self._done("reduce", tensors, tensors)

    @recorded
    def broadcast(self, tensors: Tensors, opts: Any = None) -> CompletedCall:
        return self._done("broadcast", tensors, tensors)

    @recorded
    def _allgather_base(self, output: torch.Tensor, part: torch.Tensor,
                        opts: Any = None) -> CompletedCall:
        _repeat(part, output)
        return self._done("all_gather", [output], [output])

    @recorded
    def allgather_into_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> CompletedCall:
        for output, part in zip(outputs, inputs, strict=True):
            _repeat(part, output)
        return self._done("all_gather", outputs, outputs)

    @recorded
    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors,
                  opts: Any = None) -> CompletedCall:
        for parts, own in zip(outputs, inputs, strict=True):
            for part in parts:
                if part.shape == own.shape:
                    part.copy_(own)
        return self._done("all_gather", outputs, [part for parts in outputs for part in parts])

    @recorded
    def _reduce_scatter_base(
        self, output: torch.Tensor, source: torch.Tensor, opts: Any = None,
    ) -> CompletedCall:
        self._own_part(output, source)
        return self._done("reduce_scatter", [source], [output])

    @recorded
    def reduce_scatter_tensor_coalesced(
        self, outputs: Tensors, inputs: Tensors, opts: Any = None,
    ) -> CompletedCall:
        for output, source in zip(outputs, inputs, strict=True):
            self._own_part(output, source)
        return self._done("reduce_scatter", inputs, outputs)

    @recorded
    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors],
                       opts: Any = None) -> CompletedCall:
        for output, parts in zip(outputs, inputs, strict=True):
            output.detach().copy_(parts[self._rank])
        return self._done("reduce_scatter", inputs, outputs)

    @recorded
    def alltoall_base(
        self, output: torch.Tensor, source: torch.Tensor, output_splits: Sequence[int],
        input_splits: Sequence[int], opts: Any = None,
    ) -> CompletedCall:
        shared = min(output.shape[0], source.shape[0])
        output.detach().zero_()[:shared].copy_(source[:shared])
        return self._done(exchanged((output_splits, input_splits)), [source], [output])

    @recorded
    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> CompletedCall:
        return self._done("all_to_all", [inputs], outputs)

    @recorded
    def gather(self, outputs: Sequence[Tensors], inputs: Tensors,
               opts: Any = None) -> CompletedCall:
        return self._done("gather", outputs, [part for parts in outputs for part in parts])

    @recorded
    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors],
                opts: Any = None) -> CompletedCall:
        return self._done("scatter", inputs, outputs)

    @recorded
    def barrier(self, opts: Any = None) -> CompletedCall:
        return self._done("barrier", [torch.empty(0)], [])

    @recorded
    def send(self, tensors: Tensors, destination: int, tag: int = 0) -> CompletedCall:
        self.call_log.count("send_recv", [tensor.nbytes for tensor in tensors])
        return CompletedCall(tensors, self.call_log)

    @recorded
    def recv(self, tensors: Tensors, source: int, tag: int = 0) -> CompletedCall:
        """Receive noise; another rank would count it."""
        for tensor in tensors:
            self.call_log.fill(tensor.detach())
        return CompletedCall(tensors, self.call_log)

    def _done(
        self, collective: str, sized: Sequence[torch.Tensor | Tensors], outputs: Tensors,
    ) -> CompletedCall:
        """Count a call of the size of each tensor, or of each list of tensors."""
        self.call_log.count(collective, [
            one.nbytes if isinstance(one, torch.Tensor) else sum(part.nbytes for part in one)
            for one in sized])
        return CompletedCall(outputs)

    def _own_part(self, output: torch.Tensor, source: torch.Tensor) -> None:
        """Copy this rank's part of the input of a reduction into the output."""
        with torch.no_grad():
            output.view(-1).copy_(source.reshape(self._size, -1)[self._rank])


def _repeat(part: torch.Tensor, output: torch.Tensor) -> None:
    """Put a part into each place of a gathered tensor."""
    with torch.no_grad():
        output.view(-1, part.numel()).copy_(part.clone().reshape(1, -1))


def open_counting_world(world_size: int, call_log: CallLog, rank: int = 0) -> Any:
    """Return the group of a world in which this process is ``rank``; destroys the world before.

    Groups that are opened in it count in the same log."""
    if dist.is_initialized():
        dist.destroy_process_group()
    register(COUNTING_BACKEND, _open_counting)
    dist.init_process_group(COUNTING_BACKEND, store=dist.HashStore(), rank=rank,
                            world_size=world_size, pg_options=(call_log, None))
    return dist.group.WORLD


def open_counting_group(ranks: Sequence[int], call_log: CallLog, lines: Lines | None = None) -> Any:
    """Return a group of real ranks that communicates nothing. Collective over the default group."""
    register(COUNTING_BACKEND, _open_counting)
    return dist.new_group(list(ranks), backend=COUNTING_BACKEND, pg_options=(call_log, lines))


def is_counted(group: Any) -> bool:
    """Return whether a group belongs to a world that does not exist."""
    return bool(dist.get_backend(group) == COUNTING_BACKEND and group.call_log.counts)


def _open_counting(options: Any, own: tuple[CallLog, Lines | None] | None) -> CountingGroup:
    """Return the group for torch; one that torch opens by itself uses the default's log."""
    call_log, lines = own or (dist.group.WORLD.call_log, None)
    return CountingGroup(options.group_rank, options.group_size, call_log, lines)

"""The calls of groups on which nothing is communicated: their sizes, and all of them on request."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, NamedTuple, TypeVar

import torch

Tally = dict[str, list[int]]
"""Collective -> the sizes of its calls in bytes, as nccl-tests counts them, in order."""
Lines = Sequence[Sequence[int]]
"""Which ranks have a group each, that they are divided into."""


class Blank(NamedTuple):
    """A tensor without what was in it."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device


class Call(NamedTuple):
    """A call of a method of torch's ProcessGroup; tensors among the arguments are `Blank`.

    ``lines`` tell which group it was: that of the lines which has this rank; None: the first.
    """

    lines: Lines | None
    method: str
    arguments: tuple[Any, ...]


class Wait(NamedTuple):
    """A rank waited until a message was sent or there: that of an earlier entry of the program."""

    call: int


class Ledger:
    """The calls of all groups of one world.

    ``program`` is None unless `keep` was called: then all since, in order. ``opened`` are the lines
    that groups were opened of, in order.
    """

    def __init__(self, *, counts: bool = True) -> None:
        """``counts`` False: the tally stays empty, so that any number of calls leaves nothing."""
        self.tally: Tally = {}
        self.program: list[Call | Wait] | None = None
        self.opened: list[Lines] = []
        self.counts = counts
        self._noise: dict[tuple[torch.dtype, torch.device], torch.Tensor] = {}
        self._received = 0

    def keep(self) -> None:
        """Keep what is called from now on."""
        self.program = []

    def count(self, collective: str, sizes: Sequence[int]) -> None:
        """Count calls of so many bytes."""
        if self.counts:
            self.tally.setdefault(collective, []).extend(sizes)

    def fill(self, tensor: torch.Tensor) -> None:
        """Fill what is received: normal numbers, other ones each time; of integers ones.

        Always the same would drive the weights of a training one way. torch's pipelines take a 1
        for a yes.
        """
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
"""Noise is longer than what is received by the first, and begins by the second later each time."""
Method = TypeVar("Method", bound=Callable[..., Any])


def kept(method: Method) -> Method:
    """Make a method of a group, which has ``ledger`` and ``lines``, enter its calls there."""
    @wraps(method)
    def call(self: Any, *arguments: Any, **named: Any) -> Any:
        arguments += tuple(named.values())
        program = self.ledger.program
        if program is None:
            return method(self, *arguments)
        program.append(Call(self.lines, method.__name__, blank(arguments)))
        work = method(self, *arguments)
        work.number = len(program) - 1
        return work

    return call  # type: ignore[return-value]


def blank(value: Any) -> Any:
    """Return a value with `Blank` for every tensor in its tuples and lists."""
    if isinstance(value, torch.Tensor):
        return Blank(tuple(value.shape), value.dtype, value.device)
    if isinstance(value, (tuple, list)):
        return tuple(map(blank, value))
    return value

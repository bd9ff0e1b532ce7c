"""What a rank's memory holds at the end of a step, and the most there was, by what it was for."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from hpcbench.measure.process import KernelFiles

_CLEAR = Path("/proc/self/clear_refs")


@dataclass(frozen=True, slots=True)
class HeldMemory:
    """Bytes on this rank: exact sums over its tensors, of sharded ones the rank's own part.

    Gradients are as they are before the optimizer clears them.
    """

    parameters: int
    gradients: int
    optimizer: int


def held(parameters: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer) -> HeldMemory:
    """Return what a rank holds. A gradient has its parameter's shape and dtype: torch insists."""
    own = list(parameters)
    return HeldMemory(parameters=sum(map(local_bytes, own)),
                gradients=sum(local_bytes(item) for item in own if item.requires_grad),
                optimizer=sum(map(local_bytes, states(optimizer))))


def states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
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


_COPIES = frozenset({
    "_to_copy", "copy_", "_foreach_copy_", "clone", "cat", "_chunk_cat", "chunk_cat",
    "split_with_sizes_copy", "all_gather_copy_in", "dequantize_4bit"})
"""Operations whose results hold the numbers that they were given, if in another form."""
_SUMS = frozenset({"add", "add_", "mul", "mul_", "div", "div_"})
"""What makes gradients of other gradients: sums of parts, and scaling."""
_MESSAGES = frozenset({"send", "recv_", "recv_any_source_"})
"""What a pipeline sends and receives are activations, other groups' tensors here are not."""


class SameNumbers:
    """Which storages, by the numbers that they get here, hold the same numbers (union-find)."""

    def __init__(self) -> None:
        self._same: list[int] = []

    def __len__(self) -> int:
        return len(self._same)

    def add(self) -> int:
        """Return the number of a new storage."""
        self._same.append(len(self._same))
        return self._same[-1]

    def join(self, numbers: Sequence[int]) -> None:
        for number in numbers[1:]:
            self._same[self.first(number)] = self.first(numbers[0])

    def first(self, number: int) -> int:
        """Return the storage that stands for all with the same numbers."""
        while self._same[number] != number:
            self._same[number] = self._same[self._same[number]]
            number = self._same[number]
        return number


def shapes_of(parameters: Iterable[torch.Tensor]) -> set[tuple[int, ...]]:
    """Return the shapes of parameters, whole and as this rank has them."""
    return {shape for one in parameters for shape in (tuple(one.shape), tuple(local(one).shape))}


class LiveBytes:
    """The most bytes at once of activations that operations made, in memory of their own.

    Activations are what is left when two things are taken away, of which each is known by where it
    comes from or goes to. The first is every copy of a parameter: gathered, cast or unpacked. The
    second is every gradient of a parameter: parts of it, whole ones of a sharded parameter, and
    the buffers in which it is exchanged. Memory that an operation took for itself and gave back is
    not seen, nor is what communication libraries hold.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self._parameters = list(parameters)
        self._shapes = shapes_of(self._parameters)
        self._seen: dict[int, tuple[int, Any]] = {}
        self._bytes: list[int] = []
        self._same = SameNumbers()
        self._events: list[int] = []  # n: storage n was made; ~n: it is gone
        self._weights = [self._number(local(one), 0) for one in self._parameters]

    def note(self, operation: Any, arguments: Any, result: Any) -> None:
        """Note what an operation returned: memory that none of its arguments has is new."""
        copies = copies_a_parameter(operation, result, self._shapes)
        made = list(_tensors(result))
        if not copies and all(one.untyped_storage()._cdata in self._seen for one in made):
            return
        given = [self._number(one, 0) for one in _tensors(arguments)]
        numbers = given + [self._number(one, one.untyped_storage().nbytes()) for one in made]
        if copies:
            self._same.join(numbers)

    def peak(self) -> int:
        """Return the most bytes at once; gradients are known when they are in their parameters."""
        gradients = [self._number(local(one.grad), 0) for one in self._parameters
                     if one.grad is not None]
        left_out = {self._same.first(one) for one in (*self._weights, *gradients)}
        now = most = 0
        for event in self._events:
            number = max(event, ~event)
            if self._same.first(number) not in left_out:
                now += self._bytes[number] if event >= 0 else -self._bytes[number]
                most = max(most, now)
        return most

    def _number(self, tensor: torch.Tensor, n_bytes: int) -> int:
        """Return the number of a tensor's storage; of a new one ``n_bytes`` were made."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return self._seen[key][0]
        number = self._same.add()
        # a storage's object in Python lives as long as its memory
        self._seen[key] = number, weakref.ref(storage, lambda _: self._gone(key))
        self._bytes.append(n_bytes)
        self._events.append(number)
        return number

    def _gone(self, key: int) -> None:
        self._events.append(~self._seen.pop(key)[0])


def copies_a_parameter(operation: Any, result: Any, shapes: set[tuple[int, ...]]) -> bool:
    """Return whether all tensors of an operation are of one parameter or gradient, if one is."""
    name = operation._schema.name.partition("::")[2]
    if operation.namespace == "c10d":
        return name not in _MESSAGES
    return name in _COPIES or (
        name in _SUMS and isinstance(result, torch.Tensor) and tuple(result.shape) in shapes)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, torch.Tensor))

"""A rank's memory: tensors at the end of a step, and the peak, by category."""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from hpcbench.measure.process import KernelFiles

_CLEAR = Path("/proc/self/clear_refs")


def states(optimizer: torch.optim.Optimizer) -> Iterator[torch.Tensor]:
    return (value for state in optimizer.state.values() for value in state.values()
            if isinstance(value, torch.Tensor))


def local_bytes(tensor: torch.Tensor) -> int:
    own = local(tensor)
    return int(own.numel() * own.element_size())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, in the same memory; of others all."""
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Peak:
    """The most memory in use since this was made.

    On a GPU what torch had allocated; Apple's driver tells only what it holds for the process. On
    the host the growth of the resident set of the process.
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
            try:  # proc(5): makes the kernel's peak the present size
                _CLEAR.write_text("5")
                self._known = True
            except OSError:
                self._known = False

    def read(self) -> dict[str, int | str]:
        """Return ``peak`` in bytes and its source (``peak_of``); nothing if it is unknown."""
        if self._device.type == "cuda":
            return {"peak": torch.cuda.max_memory_allocated(self._device),
                    "peak_of": "cuda allocated"}
        if self._device.type == "mps":
            return {"peak": torch.mps.driver_allocated_memory(), "peak_of": "mps driver held"}
        peak = KernelFiles().process_bytes("VmHWM")
        if not self._known or peak is None or self._before is None:
            return {}
        return {"peak": max(peak - self._before, 0), "peak_of": "process growth"}


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
    return {shape for one in parameters for shape in (tuple(one.shape), tuple(local(one).shape))}


class LiveBytes:
    """The most bytes at once of activations that operations made, in memory of their own.

    Left out are copies of parameters (gathered, cast, unpacked) and gradients with their parts and
    buffers. What an operation or a communication library takes for itself is not seen.
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
        self._seen[key] = number, weakref.ref(
            storage, lambda _: self._events.append(~self._seen.pop(key)[0]))
        self._bytes.append(n_bytes)
        self._events.append(number)
        return number

def copies_a_parameter(operation: Any, result: Any, shapes: set[tuple[int, ...]]) -> bool:
    """Return whether all tensors of an operation are of one parameter or gradient, if one is."""
    name = operation._schema.name.partition("::")[2]
    if operation.namespace == "c10d":
        return name not in _MESSAGES
    return name in _COPIES or (
        name in _SUMS and isinstance(result, torch.Tensor) and tuple(result.shape) in shapes)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, torch.Tensor))

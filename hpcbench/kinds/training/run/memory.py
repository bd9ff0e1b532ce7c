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
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.tensor import DTensor
from torch.utils._pytree import tree_iter

from hpcbench.measurement.process import KernelFiles

_CLEAR = Path("/proc/self/clear_refs")


def states(optimizer: torch.optim.Optimizer) -> Iterable[torch.Tensor]:
    """Return the tensors of an optimizer's states, those of several parameters once."""
    return {id(value): value for state in optimizer.state.values() for value in state.values()
            if isinstance(value, torch.Tensor)}.values()


def local_bytes(tensor: torch.Tensor) -> int:
    own = local(tensor)
    return int(own.numel() * own.element_size())


def local(tensor: torch.Tensor) -> torch.Tensor:
    """Return this rank's part of a sharded tensor, in the same memory; others whole.

    The result of a call that may be under way is wrapped: the wrapper has no memory of its own."""
    own = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return own.elem if isinstance(own, AsyncCollectiveTensor) else own


class Peak:
    """The most memory in use since this was made.

    On a GPU the allocations of torch; Apple's driver reports only its memory for the process. On
    the host the growth of the resident set of the process."""

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
"""Operations that make gradients of other gradients: sums of parts, and scaling."""
_MESSAGES = frozenset({"send", "recv_", "recv_any_source_"})
"""Messages of a pipeline are activations, other groups' tensors here are not."""


class Storages:
    """The storages of tensors by number, which are alive, and which hold the same values."""

    def __init__(self, parameters: Iterable[torch.Tensor]) -> None:
        self.parameters = list(parameters)
        self.alive: dict[int, tuple[int, Any]] = {}  # number and weak reference by address
        self.same: list[int] = []  # union-find: of each storage one with the same values
        self.bytes: list[int] = []
        self.events: list[int] = []  # n: storage n was made; ~n: it is gone
        self._shapes = {shape for one in self.parameters
                        for shape in (tuple(one.shape), tuple(local(one).shape))}

    def number(self, tensor: torch.Tensor, n_bytes: int = 0) -> int:
        """Return the number of a tensor's storage; a new one has ``n_bytes``."""
        storage = local(tensor).untyped_storage()
        key = storage._cdata
        if key not in self.alive:
            number = len(self.same)
            # a storage's object in Python lives as long as its memory
            self.alive[key] = number, weakref.ref(
                storage, lambda _: self.events.append(~self.alive.pop(key)[0]))
            self.same.append(number)
            self.bytes.append(n_bytes)
            self.events.append(number)
        return self.alive[key][0]

    def gradients(self) -> set[int]:
        return {self.number(one.grad) for one in self.parameters if one.grad is not None}

    def join(self, numbers: Sequence[int]) -> None:
        for number in numbers[1:]:
            self.same[self.first(number)] = self.first(numbers[0])

    def first(self, number: int) -> int:
        """Return the storage that stands for all with the same values."""
        while self.same[number] != number:
            self.same[number] = self.same[self.same[number]]
            number = self.same[number]
        return number

    def copies_a_parameter(self, operation: Any, result: Any) -> bool:
        """Return whether all tensors of an operation are of one parameter or gradient, if any."""
        name = operation._schema.name.partition("::")[2]
        if operation.namespace == "c10d":
            return name not in _MESSAGES
        return name in _COPIES or (name in _SUMS and isinstance(result, torch.Tensor)
                                   and tuple(result.shape) in self._shapes)


class LiveBytes(Storages):
    """The peak bytes of activations that operations made, in memory of their own.

    Left out are copies of parameters (gathered, cast, unpacked) and gradients with their parts and
    buffers. Memory that an operation or a communication library takes for itself is not seen."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters)
        self._weights = set(map(self.number, self.parameters))

    def note(self, operation: Any, arguments: Any, result: Any) -> None:
        """Note what an operation returned: memory that none of its arguments has is new."""
        copies, made = self.copies_a_parameter(operation, result), list(_tensors(result))
        if not copies and all(one.untyped_storage()._cdata in self.alive for one in made):
            return
        given = [self.number(one) for one in _tensors(arguments)]
        numbers = given + [self.number(one, one.untyped_storage().nbytes()) for one in made]
        if copies:
            self.join(numbers)

    def peak(self) -> int:
        """Return the peak bytes; gradients are known when they are in their parameters."""
        left_out = {self.first(one) for one in (*self._weights, *self.gradients())}
        now = most = 0
        for event in self.events:
            number = max(event, ~event)
            if self.first(number) not in left_out:
                now += self.bytes[number] if event >= 0 else -self.bytes[number]
                most = max(most, now)
        return most


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, torch.Tensor))

"""How many bytes of activations a step has at once: what operations made, and for what."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from hpcbench.kinds.training.run.memory import local

_COPIES = frozenset({
    "_to_copy", "copy_", "_foreach_copy_", "clone", "cat", "_chunk_cat", "chunk_cat",
    "split_with_sizes_copy", "all_gather_copy_in", "dequantize_4bit"})
"""Operations whose results hold the numbers that they were given, if in another form."""
_SUMS = frozenset({"add", "add_", "mul", "mul_", "div", "div_"})
"""What makes gradients of other gradients: sums of parts, and scaling."""
_MESSAGES = frozenset({"send", "recv_", "recv_any_source_"})
"""What a pipeline sends and receives are activations, other groups' tensors here are not."""


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
        self._shapes = {shape for one in self._parameters
                        for shape in (tuple(one.shape), tuple(local(one).shape))}
        self._seen: dict[int, tuple[int, Any]] = {}
        self._bytes: list[int] = []
        self._same: list[int] = []  # of each storage another one with the same numbers, or itself
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
            for one in numbers[1:]:
                self._same[self._first(one)] = self._first(numbers[0])

    def peak(self) -> int:
        """Return the most bytes at once; gradients are known when they are in their parameters."""
        gradients = [self._number(local(one.grad), 0) for one in self._parameters
                     if one.grad is not None]
        left_out = {self._first(one) for one in (*self._weights, *gradients)}
        now = most = 0
        for event in self._events:
            number = max(event, ~event)
            if self._first(number) not in left_out:
                now += self._bytes[number] if event >= 0 else -self._bytes[number]
                most = max(most, now)
        return most

    def _number(self, tensor: torch.Tensor, n_bytes: int) -> int:
        """Return the number of a tensor's storage; of a new one ``n_bytes`` were made."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._seen:
            return self._seen[key][0]
        number = len(self._bytes)
        # a storage's object in Python lives as long as its memory
        self._seen[key] = number, weakref.ref(storage, lambda _: self._gone(key))
        self._bytes.append(n_bytes)
        self._same.append(number)
        self._events.append(number)
        return number

    def _gone(self, key: int) -> None:
        self._events.append(~self._seen.pop(key)[0])

    def _first(self, number: int) -> int:
        """Return the storage that stands for all with the same numbers (union-find)."""
        while self._same[number] != number:
            self._same[number] = self._same[self._same[number]]
            number = self._same[number]
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

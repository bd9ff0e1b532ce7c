"""What a rank holds at the moment of a step at which it holds most, by what it is."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter

from hpcbench.kinds.training.run.live_bytes import copies_a_parameter
from hpcbench.kinds.training.run.memory import local

PARTS = ("parameters", "gradients", "optimizer_state", "activations", "temporary")
"""What a byte that is held can be of. Each is of one of them."""
_WRAPPED = (torch.Tensor, nn.Parameter)


class LiveStorages(TorchDispatchMode):  # type: ignore[misc]
    """Follows every storage that operations see while it is entered.

    Memory that an operation takes for itself and gives back is not seen, nor is what libraries
    hold that communicate. ``weights`` are all of the model, parameters among them, ``states`` the
    optimizer's.
    """

    def __init__(self, weights: Iterable[torch.Tensor], states: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self._parameters = list(weights)
        self._shapes = {shape for one in self._parameters
                        for shape in (tuple(one.shape), tuple(local(one).shape))}
        self._alive: dict[int, tuple[int, weakref.ref[torch.UntypedStorage]]] = {}
        self._same: list[int] = []  # of each storage another with the same numbers, or itself
        self._kept: set[int] = set()  # made by forward and backward
        self._in_update = False
        self._most: tuple[int, list[tuple[int, int]]] = (0, [])
        self._weights = {self._number(local(one)) for one in self._parameters}
        self._states = {self._number(local(one)) for one in states}
        self._gradients: set[int] = set()

    def restart(self) -> None:
        """Begin a step: what is alive stays known, the moment with most and its parts do not."""
        self._kept, self._gradients = set(), set()
        self._in_update = False
        self._most = (0, [])

    def gradients_are_there(self) -> None:
        """Note which storages are gradients; what comes now is the optimizer's."""
        self._gradients = {self._number(local(one.grad)) for one in self._parameters
                           if one.grad is not None}
        self._in_update = True

    def at_peak(self) -> dict[str, int]:
        """Return the bytes of each of PARTS at the moment with most of all together."""
        copied = {self._first(one) for one in (*self._weights, *self._gradients)}
        found = dict.fromkeys(PARTS, 0)
        for number, size in self._most[1]:
            found[self._part(number, copied)] += size
        return found

    def _part(self, number: int, copied: set[int]) -> str:
        for part, numbers in zip(PARTS, (self._weights, self._gradients, self._states),
                                 strict=False):
            if number in numbers:
                return part
        is_activation = number in self._kept and self._first(number) not in copied
        return "activations" if is_activation else "temporary"

    def __torch_dispatch__(
        self, func: Any, types: Sequence[type], args: Any = (), kwargs: Any = None,
    ) -> Any:
        """Run an operation, and look at the storages of its tensors and at all that live."""
        if any(kind not in _WRAPPED for kind in types):
            return NotImplemented  # a subclass does it by operations on its own tensors
        before = [self._number(one) for one in _tensors((args, kwargs))]
        n_known = len(self._same)
        result = func(*args, **(kwargs or {}))
        after = [self._number(one) for one in _tensors(result)]
        if not self._in_update:
            self._kept |= set(range(n_known, len(self._same)))
        if before and copies_a_parameter(func, result, self._shapes):
            for number in (*before[1:], *after):
                self._same[self._first(number)] = self._first(before[0])
        self._look()
        return result

    def _look(self) -> None:
        now = [(number, storage.nbytes()) for number, reference in tuple(self._alive.values())
               if (storage := reference()) is not None]
        total = sum(size for _, size in now)
        if total > self._most[0]:
            self._most = total, now

    def _number(self, tensor: torch.Tensor) -> int:
        """Return the number of a tensor's storage."""
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key not in self._alive:
            # a storage's object in Python lives as long as its memory
            self._alive[key] = (len(self._same), weakref.ref(
                storage, lambda _: self._alive.pop(key, None)))
            self._same.append(len(self._same))
        return self._alive[key][0]

    def _first(self, number: int) -> int:
        """Return the storage that stands for all with the same numbers (union-find)."""
        while self._same[number] != number:
            self._same[number] = self._same[self._same[number]]
            number = self._same[number]
        return number


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values)
            if isinstance(value, torch.Tensor) and value.device.type != "meta")

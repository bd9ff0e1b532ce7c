"""How many bytes of tensors a step has at once, beside what was there when it began."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_iter

from hpcbench.kinds.training.run.memory import local


class LiveBytes:
    """The most bytes at once of what operations made, in memory of their own; in ``peak``.

    Gradients of ``parameters`` are left out. Memory that an operation took for itself and gave
    back is not seen, nor is what communication libraries hold.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        self.peak = 0
        self._now = 0
        self._parameters = [one for one in parameters if one.requires_grad]
        self._made: dict[int, tuple[int, Any]] = {}

    def note(self, arguments: Any, result: Any) -> None:
        """Note what an operation returned: memory that none of its arguments has is new."""
        given: set[int] | None = None
        for tensor in _tensors(result):
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key in self._made:
                continue
            if given is None:
                given = {one.untyped_storage()._cdata for one in _tensors(arguments)}
            if key not in given:
                self._add(key, storage)

    def _add(self, key: int, storage: torch.UntypedStorage) -> None:
        n_bytes = storage.nbytes()
        # a storage's object in Python lives as long as its memory
        self._made[key] = n_bytes, weakref.ref(storage, lambda _: self._gone(key))
        self._now += n_bytes
        if self._now > self.peak:
            self.peak = max(self.peak, self._now - self._gradients())

    def _gone(self, key: int) -> None:
        self._now -= self._made.pop(key)[0]

    def _gradients(self) -> int:
        """Return the bytes of gradients that are among what was made."""
        keys = {local(one.grad).untyped_storage()._cdata
                for one in self._parameters if one.grad is not None}
        return sum(self._made[key][0] for key in keys if key in self._made)


def _tensors(values: Any) -> Iterator[torch.Tensor]:
    return (value for value in tree_iter(values) if isinstance(value, torch.Tensor))

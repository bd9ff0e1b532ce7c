"""What the operations of a step do: their FLOPs, the collectives they call, the memory they take.

torch shows each operation to a mode, those of backward too, whichever thread runs them: with its
own tensors, so what tensors of several ranks (DTensor) do is seen as what this rank does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import (
    bmm_flop,
    flop_registry,
    sdpa_backward_flop_count,
    sdpa_flop_count,
)

from hpcbench.backends.python_group import Called, called, is_call
from hpcbench.kinds.training.run.live_bytes import LiveBytes

_PLAIN = (torch.Tensor, nn.Parameter)
_OF_CPU = "_scaled_dot_product_flash_attention_for_cpu"
_ATTENTION_BACKWARD = frozenset({
    "_scaled_dot_product_flash_attention_backward", f"{_OF_CPU}_backward",
    "_scaled_dot_product_efficient_attention_backward",
    "_scaled_dot_product_cudnn_attention_backward"})
"""Their first arguments are the gradient of the result, queries, keys and values."""


class StepCounter(TorchDispatchMode):  # type: ignore[misc]
    """Counts what is called while it is entered.

    Attributes:
        calls: the collectives of this rank, in order.
        flops: by torch's formulas (`torch.utils.flop_counter`): products of matrices and
            convolutions, and attention over all pairs of tokens.
        scores_again_flops: of these, products of queries with keys that a fused attention computes
            once more in backward.
        unknown: names of operations on groups that are not known, and so not in ``calls``.
        activations: their most bytes at once; None until `settled`.
    """

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__()
        self.calls: list[Called] = []
        self.flops = self.scores_again_flops = 0
        self.unknown: set[str] = set()
        self.activations: int | None = None
        self._live: LiveBytes | None = LiveBytes(parameters)

    @classmethod
    def ignore_compile_internals(cls) -> bool:
        """Return True: what is compiled runs as it is compiled, and is not seen."""
        return True

    def settled(self) -> None:
        """Note no more memory: what comes is not kept for backward, whose gradients are there."""
        if self._live:
            self.activations, self._live = self._live.peak(), None

    def note(self, calls: Sequence[Called]) -> None:
        """Take calls of groups that are called without operations."""
        self.calls += calls

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Any = None,
    ) -> Any:
        """Run an operation, and count it."""
        if any(kind not in _PLAIN for kind in types):
            return NotImplemented  # a subclass does it by operations on its own tensors
        named = kwargs or {}
        result = func(*args, **named)
        if is_call(func):
            try:
                self.calls += called(func, args, result)
            except KeyError as error:
                self.unknown.add(str(error.args[0]))
        else:
            self._count(func, args, named, result)
        if self._live:
            self._live.note(func, (args, named), result)
        return result

    def _count(self, func: Any, args: Any, named: Any, result: Any) -> None:
        name = func._schema.name.partition("::")[2]
        if name in _ATTENTION_BACKWARD:
            gradient, queries, keys, values = (one.shape for one in args[:4])
            self.flops += sdpa_backward_flop_count(gradient, queries, keys, values)
            batch, heads, tokens, extent = queries
            self.scores_again_flops += bmm_flop(
                (batch * heads, tokens, extent), (batch * heads, extent, keys[2]))
        elif name == _OF_CPU:  # torch 2.13 has no formula for it
            self.flops += sdpa_flop_count(*(one.shape for one in args[:3]))
        elif formula := flop_registry.get(func._overloadpacket):
            self.flops += formula(*args, **named, out_val=result)

"""What the operations of a step do: their FLOPs, the collectives they call, the memory they take.

torch shows each operation to a mode, those of backward too, whichever thread runs them: with its
own tensors, so what tensors of several ranks (DTensor) do is seen as what this rank does.

One more step, after all that are timed, in which everything that it does is counted.

Counting makes a step longer, so it is never a sample. By then all is as in any step: buckets are in
order, stages agree on shapes, weights and states are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
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

from hpcbench.backends.python_group import Called, called, is_call, watched
from hpcbench.kinds.training.plan import spec as traffic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.memory import LiveBytes
from hpcbench.kinds.training.run.phases import phase_clock
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy

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


_COMPILED = "the kernels that torch.compile makes are no operations that torch counts"
_SILENT = "its groups move nothing"
_ACTIVATIONS = "results of operations, but for copies and gradients of parameters"


def count_step(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, Any]:
    """Take a step on a batch; all ranks call it. The weights are other ones then.

    ``calls`` maps each collective to its number, size and bytes on the wire; ``flops`` are by
    `StepCounter`, without ``scores_again_flops``; ``activations`` are their most bytes at once, as
    `LiveBytes` knows them. ``missing`` says why something of it is not there.
    """
    parameters = [one for module in strategy.modules() for one in module.parameters()]
    counter = StepCounter(parameters)
    phases = phase_clock(strategy.place.device, time.perf_counter_ns)
    phases.begin()
    with watched(strategy.groups(), counter.note), counter:
        strategy.forward_backward(batch, phases)
        counter.settled()
        strategy.update(phases)
        strategy.rebalance(phases)
    missing = dict(_missing(spec, strategy, counter))
    found: dict[str, Any] = {"missing": missing}
    if "calls" not in missing:
        found["calls"] = _together(counter.calls)
    if "flops" not in missing:
        found["flops"] = counter.flops - counter.scores_again_flops
        found["scores_again_flops"] = counter.scores_again_flops
    if "activations" not in missing:
        found |= {"activations": counter.activations, "activations_of": _ACTIVATIONS}
    return found


def _missing(
    spec: Training, strategy: Strategy, counter: StepCounter,
) -> Iterable[tuple[str, str]]:
    if spec.communication == "off":
        yield "calls", _SILENT
    elif counter.unknown:
        yield "calls", f"it called {', '.join(sorted(counter.unknown))}, whose sizes are not known"
    elif strategy.uncounted:
        yield "calls", strategy.uncounted
    elif spec.compile and spec.tp > 1:
        yield "calls", "what compiled blocks call is no operation that torch shows"
    if spec.compile:
        yield "flops", _COMPILED
        yield "activations", _COMPILED


def _together(calls: Iterable[Called]) -> Mapping[str, list[int]]:
    """Return each collective's calls, size and bytes on the wire, as predictions have them."""
    parts = (traffic.calls(one.collective, one.ranks, [one.size_bytes]) for one in calls)
    return {one.collective: [one.count, one.size_bytes, one.wire_bytes]
            for one in traffic.together(parts)}

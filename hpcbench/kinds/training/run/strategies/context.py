"""Context parallelism: ranks share the tokens of each sample, and shards of the parameters.

The ring is torch's (`_templated_ring_attention`), around the fused attention of the device, as its
``context_parallel`` runs it, which has no rule for CPUs. How it goes round torch keeps in options
of the module, which are set for each call."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from hpcbench.errors import CaseError
from hpcbench.kinds.training.plan.context import token_parts
from hpcbench.kinds.training.plan.spec import TokenSharing, context_of
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.build import build
from hpcbench.kinds.training.run.models.experts import Exchange, RowExchange
from hpcbench.kinds.training.run.models.model import Model
from hpcbench.kinds.training.run.models.transformer import Attention, attention
from hpcbench.kinds.training.run.strategies import base
from hpcbench.kinds.training.run.strategies.replica import Fsdp, Sharder
from hpcbench.operations.place import Place

_TOKENS = 2  # the dimension of queries, keys and values (samples, heads, tokens, head_dim)
_KERNELS = MappingProxyType({
    "cpu": (torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default,
            torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default),
    "cuda": (torch.ops.aten._scaled_dot_product_flash_attention.default,
             torch.ops.aten._scaled_dot_product_flash_attention_backward.default)})
"""Fused attention that returns the logarithm of the sum of exponentials, too, and its gradient."""
_OF_BACKWARD = ("cum_seq_q", "cum_seq_k", "max_q", "max_k", "philox_seed", "philox_offset")
"""What else the kernel of CUDA returns, and its gradient takes."""


class RingPath(NamedTuple):
    """The ranks of a ring, how keys and values go round, and whether tokens see those before only.
    """

    group: Any
    how: TokenSharing
    causal: bool


class Ring(torch.autograd.Function):  # type: ignore[misc]
    """Attention of a rank's queries to keys and values of all ranks of a group."""

    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, path: RingPath,
    ) -> torch.Tensor:
        with _as_stated(path) as templates:
            out, logsumexp, *rest = templates._templated_ring_attention(
                path.group, _TOKENS, _kernels(q)[0], query=q, key=k, value=v,
                is_causal=path.causal, dropout_p=0.0)
        ctx.save_for_backward(q, k, v, out, logsumexp)
        ctx.path, ctx.rest = path, dict(zip(_OF_BACKWARD, rest, strict=False))
        return out

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        q, k, v, out, logsumexp = ctx.saved_tensors
        with _as_stated(ctx.path) as templates:
            of_q, of_k, of_v, *_ = templates._templated_ring_attention_backward(
                ctx.path.group, _TOKENS, _kernels(q)[1], grad_out=gradient,
                grad_out_name="grad_out", query=q, key=k, value=v, out=out, logsumexp=logsumexp,
                is_causal=ctx.path.causal, dropout_p=0.0, **ctx.rest)
        return of_q, of_k, of_v, None


def _kernels(q: torch.Tensor) -> tuple[Any, Any]:
    """Return the two kernels of a tensor's device. Raises CaseError where there are none."""
    device = q.device.type
    if device not in _KERNELS or (device == "cuda" and q.dtype not in (
            torch.bfloat16, torch.float16)):
        raise CaseError(f"a ring has no attention of {q.dtype} on {device}: take dtype bf16, or "
                        "attention ulysses")
    return _KERNELS[device]


@contextlib.contextmanager
def _as_stated(path: RingPath) -> Iterator[Any]:
    """Yield torch's module of rings, which goes round as the path says."""
    # other layouts need no torch that has it
    from torch.distributed.tensor.experimental._context_parallel import _attention as templates

    options, methods = templates._cp_options, templates._RotateMethod
    before = options.enable_load_balance, options.rotate_method
    options.enable_load_balance = path.how.zigzag
    options.rotate_method = methods.ALL_GATHER if path.how.gathered else methods.ALL_TO_ALL
    try:
        yield templates
    finally:
        options.enable_load_balance, options.rotate_method = before


def by_heads(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, group: Any, ranks: int,
) -> torch.Tensor:
    """Return attention by some heads of all tokens on each rank, exchanged before and behind."""
    apart = [one.unflatten(1, (ranks, -1)) for one in (q, k, v)]
    exchange = Exchange(group)
    got = RowExchange.apply(torch.cat(apart, dim=2).movedim(1, 0), None, None, exchange, exchange)
    whole = got.movedim(0, _TOKENS).flatten(_TOKENS, _TOKENS + 1)
    own = whole.split([one.shape[2] for one in apart], dim=1)
    mixed = attention(*own, causal=causal).unflatten(_TOKENS, (ranks, -1))
    back = RowExchange.apply(mixed.movedim(_TOKENS, 0), None, None, exchange, exchange)
    return back.movedim(0, 1).flatten(1, 2)


def around(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool, group: Any,
    how: TokenSharing,
) -> torch.Tensor:
    mixed: torch.Tensor = Ring.apply(q, k, v, RingPath(group, how, causal))
    return mixed


def places_of(work: Training, rank: int) -> torch.Tensor:
    """Return the positions (tokens,) of the tokens of a sample that the group's rank has."""
    parts = torch.arange(work.seq_length).chunk(token_parts(work))
    mirrored = [len(parts) - 1 - rank] if len(parts) > work.cp else []
    return torch.cat([parts[number] for number in (rank, *mirrored)])


class OwnTokens:
    """The tokens of each sample that a rank has, all where none are shared, and the attention that
    reaches the others'."""

    def __init__(self, spec: Training, place: Place, grid: base.Grid) -> None:
        self._spec, self._how = spec, context_of(spec)
        if self._how:
            self._group = grid.groups["cp"]
            self._places = places_of(spec, dist.get_rank(self._group)).to(place.device)

    def reach_others(self, draft: Model) -> Model:
        if self._how is None:
            return draft
        draft.places = self._places
        for module in draft.modules():
            if isinstance(module, Attention):
                module.attend = (
                    partial(by_heads, group=self._group, ranks=self._spec.cp)
                    if self._how.by_heads else partial(around, group=self._group, how=self._how))
        return draft

    def of(self, batch: base.Batch) -> base.Batch:
        tokens, targets = batch
        return (tokens[:, self._places], targets[:, self._places]) if self._how else batch

    def mean(self, loss: torch.Tensor, phases: base.PhaseClock) -> torch.Tensor:
        """Return the loss of whole samples; all of a group call it."""
        if self._how is None:
            return loss
        dist.all_reduce(loss, group=self._group)
        phases.end("exchange")
        return loss / self._spec.cp


class ContextParallel(Fsdp):
    """A model on the rank's own tokens, whose attention reaches those of the others."""

    def build(self) -> Model:
        self.grid = base.parallel_grid(self.spec, self.place)
        self._tokens = OwnTokens(self.spec, self.place, self.grid)
        sharder = Sharder(self.grid.row("shard"), self.spec)
        return build(self._tokens.reach_others(self.draft()), self.place.device, self.fill,
                     shard=sharder.shard)

    def forward_backward(self, batch: base.Batch, phases: base.PhaseClock) -> torch.Tensor:
        loss = super().forward_backward(self._tokens.of(batch), phases)
        return self._tokens.mean(loss, phases)

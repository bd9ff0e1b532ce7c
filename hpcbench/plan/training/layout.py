"""How a training lies on its ranks: what is divided, copied and cast; read from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.plan.case import Training
from hpcbench.plan.training.activations import Kept
from hpcbench.plan.training.tensors import COLUMNWISE, ROWWISE, Tensor


@dataclass(frozen=True, slots=True)
class Layout:
    """What strategies have in common, whatever they are called.

    Attributes:
        kept: how activations are kept.
        is_sharded: whether parameters are gathered when they are needed (FSDP).
        shards: ranks that parameters, gradients and states are divided among (FSDP).
        copies: groups of such shards that have the same (HSDP).
        reshard: whether blocks give up what they gathered between forward and backward.
        bucket_mb: MiB of a bucket of gradients, None where there are none (DDP).
        bucket_view: whether gradients lie in the buckets.
        hook: how gradients travel (DDP).
        state_ranks: ranks that the optimizer's states alone are divided among (ZeRO stage 1).
        parts: micro-batches of a step, of which each has ``tokens``.
        tokens: of one micro-batch of a replica.
    """

    kept: Kept
    is_sharded: bool
    shards: int
    copies: int
    reshard: bool
    bucket_mb: int | None
    bucket_view: bool
    hook: str
    state_ranks: int
    parts: int
    tokens: int


def layout_of(work: Training) -> Layout:
    """Return the layout of a training."""
    options = dict(work.options)
    is_sharded, mixed = "reshard" in options, work.dtype != "fp32"
    copies = int(options.get("replicas", 1)) if is_sharded else work.dp
    parts = work.accumulation * int(options.get("microbatches", 1))
    element = DTYPE_BYTES[work.dtype]
    kept = Kept(
        element=element, wide=element if is_sharded else 4,
        copies=mixed and not is_sharded, tp=work.tp,
        by_tokens=bool(options.get("sequence_parallel", False)),
        by_words=bool(options.get("loss_parallel", False)))
    return Layout(
        kept=kept, is_sharded=is_sharded,
        shards=work.dp // copies if is_sharded else 1, copies=copies,
        reshard=bool(options.get("reshard", False)),
        bucket_mb=int(options["bucket_mb"]) if "bucket_mb" in options else None,
        bucket_view=bool(options.get("bucket_view", False)),
        hook=str(options.get("comm_hook", "none")),
        state_ranks=work.dp if work.strategy == "zero1" else 1, parts=parts,
        tokens=work.batch_size * work.seq_length // parts)


def divided(parameters: Sequence[Tensor], tp: int) -> list[Tensor]:
    """Return a tensor-parallel rank's part of each parameter, that of the first rank."""
    return [Tensor(item.name, _part(item, tp)) for item in parameters]


def _part(item: Tensor, tp: int) -> tuple[int, ...]:
    product, _, kind = item.name.rpartition(".")
    rows, *columns = item.extents
    if product.endswith(COLUMNWISE) or product in ("embedding.tokens", "head.logits"):
        return (-(-rows // tp), *columns)
    if product.endswith(ROWWISE) and kind == "weight":
        return (rows, -(-columns[0] // tp))
    return item.extents


def sharded(parameters: Sequence[Tensor], shards: int) -> list[Tensor]:
    """Return the first rank's shard of each parameter: it has most where they are uneven."""
    return [Tensor(item.name, (-(-item.extents[0] // shards), *item.extents[1:]))
            for item in parameters]

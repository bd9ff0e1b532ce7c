"""How a training lies on its ranks: what is divided, copied and cast; read from its options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.activations import Kept
from hpcbench.kinds.training.plan.adapters import adapters_of
from hpcbench.kinds.training.plan.shares import most_share
from hpcbench.kinds.training.plan.tensors import COLUMNWISE, ROWWISE, Tensor
from hpcbench.kinds.training.plan.traffic import Groups
from hpcbench.kinds.training.plan.workload import Training


@dataclass(frozen=True, slots=True)
class Layout:
    """What strategies have in common, whatever they are called.

    Attributes:
        kept: how activations are kept.
        groups: how parameters are spread that are handled block by block: gathered when they are
            needed (FSDP), cast, and their gradients exchanged together; None where they are not.
        bucket_mb: MiB of a bucket of gradients, None where there are none (DDP).
        bucket_view: whether gradients lie in the buckets.
        hook: how gradients travel (DDP).
        state_ranks: ranks that the optimizer's states alone are divided among (ZeRO stage 1).
        parts: micro-batches of a step.
        samples: of one micro-batch of a replica, where they differ the most.
        tokens: of one, too; 0 if samples are images.
    """

    kept: Kept
    groups: Groups | None
    bucket_mb: int | None
    bucket_view: bool
    hook: str
    state_ranks: int
    parts: int
    samples: int
    tokens: int

    @property
    def shards(self) -> int:
        """Return the ranks that each parameter is divided among by FSDP."""
        return self.groups.shards if self.groups else 1


def layout_of(work: Training) -> Layout:
    """Return the layout of a training."""
    options, groups = dict(work.options), _groups(work)
    mixed, element = work.dtype != "fp32", DTYPE_BYTES[work.dtype]
    parts = work.accumulation * int(options.get("microbatches", 1) if work.pp > 1 else 1)
    kept = Kept(
        element=element, wide=element if groups else 4, copies=mixed and groups is None,
        adapters=adapters_of(work), tp=work.tp,
        by_tokens=bool(options.get("sequence_parallel", False)),
        by_words=bool(options.get("loss_parallel", False)))
    return Layout(
        kept=kept, groups=groups,
        bucket_mb=int(options["bucket_mb"]) if "bucket_mb" in options else None,
        bucket_view=bool(options.get("bucket_view", False)),
        hook=str(options.get("comm_hook", "none")),
        state_ranks=work.dp if work.strategy == "zero1" else 1, parts=parts,
        samples=-(-most_share(work) // parts),
        tokens=-(-most_share(work) // parts) * work.seq_length)


def _groups(work: Training) -> Groups | None:
    """Return how parameters are spread block by block, None where each replica has them whole.

    A pipeline gathers its stages once for all micro-batches, and exchanges gradients behind them.
    """
    options, element = dict(work.options), DTYPE_BYTES[work.dtype]
    if "reshard" in options:
        copies = int(options.get("replicas", 1))
        return Groups(work.dp // copies, copies, element, reshard=bool(options["reshard"]),
                      rounds=work.accumulation)
    if work.dp == 1 or "data" not in options:
        return None
    times = work.accumulation if work.pp > 1 else 1
    if options["data"] != "fsdp":
        return Groups(1, work.dp, element, exchanges=times)
    return Groups(work.dp, 1, element, reshard=work.pp == 1, reshard_root=work.pp == 1,
                  rounds=work.accumulation, exchanges=times)


def divided(parameters: Sequence[Tensor], tp: int) -> list[Tensor]:
    """Return a tensor-parallel rank's part of each parameter, that of the first rank."""
    return [item._replace(extents=_part(item, tp)) for item in parameters]


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
    return [item._replace(extents=(-(-item.extents[0] // shards), *item.extents[1:]))
            for item in parameters]

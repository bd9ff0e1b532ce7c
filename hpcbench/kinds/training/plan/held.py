"""The parameters of a rank as it holds them: divided, sharded, frozen, packed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.kinds.training.plan.adapters import is_narrow, low_rank_tensors
from hpcbench.kinds.training.plan.lookup import adapters_of
from hpcbench.kinds.training.plan.models import shape_of
from hpcbench.kinds.training.plan.tensors import COLUMNWISE, ROWWISE, Tensor
from hpcbench.kinds.training.plan.workload import Training


def laid_out(work: Training, parameters: Iterable[Tensor]) -> list[Tensor]:
    """Return the parameters as they are held, adapters behind the weights that have them.

    Without adapters these are the parameters as they are: fp32, all of them trained.
    """
    adapters = adapters_of(work)
    if adapters is None:
        return list(parameters)
    narrow, tensors = DTYPE_BYTES[work.dtype], []
    for item in parameters:
        held = item._replace(trained=False)
        if adapters.packs(item.name):
            held = held._replace(extents=(-(-item.elements // 2), 1), element_bytes=1)
        elif is_narrow(shape_of(work), item.name):
            held = held._replace(element_bytes=narrow)
        tensors.append(held)
        tensors += low_rank_tensors(item, adapters.rank) if adapters.has(item.name) else ()
    return tensors


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

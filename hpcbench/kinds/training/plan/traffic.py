"""What the ranks of a data-parallel group exchange in a step, counted from the parameters.

Sizes are those of nccl-tests; bytes on the wire are sizes times busbw factors
(`operations.bandwidth.busbw_factor`). What is counted is what torch 2.13 calls: a test compares it
with the calls that a step makes.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from hpcbench.kinds.training.plan.layout import Groups
from hpcbench.kinds.training.plan.tensors import Parameters, Tensor, of_each

_WIRE = {"all_reduce": 2, "all_gather": 1, "reduce_scatter": 1}
"""Times (n - 1) / n: the busbw factor on n ranks."""
_COMPRESSED = {"none": 4, "bf16": 2, "fp16": 2}
"""Bytes of a gradient's element under a comm hook of DDP."""
_KEPT = 256
"""Counts of calls that are kept: a sweep asks for them again with each batch."""
_WORTH = 2
"""PowerSGD compresses a matrix if that saves more than this factor (its min_compression_rate)."""


@dataclass(frozen=True, slots=True)
class Calls:
    """Calls of one collective in one step: how many, their sizes together, and on the wire."""

    collective: str
    count: int
    size_bytes: int
    wire_bytes: int


def calls(collective: str, ranks: int, sizes: Sequence[int]) -> Calls:
    """Return the calls of a collective on so many ranks; one without ranks to talk to is none.

    torch calls groups of one rank in some layouts (HSDP of one replica), in others not.
    """
    if ranks == 1:
        return Calls(collective, 0, 0, 0)
    size = sum(sizes)
    wire = _WIRE[collective] * size * (ranks - 1) // ranks if collective in _WIRE else size
    return Calls(collective, len(sizes), size, wire)


def together(parts: Iterable[Calls]) -> tuple[Calls, ...]:
    """Return the calls of each collective added up, in the order of first appearance."""
    totals: dict[str, Calls] = {}
    for part in parts:
        total = totals.get(part.collective, Calls(part.collective, 0, 0, 0))
        totals[part.collective] = Calls(
            part.collective, total.count + part.count, total.size_bytes + part.size_bytes,
            total.wire_bytes + part.wire_bytes)
    return tuple(part for part in totals.values() if part.count)


@lru_cache(maxsize=_KEPT)
def ddp_calls(
    parameters: Parameters, ranks: int, bucket_mb: int, hook: str = "none",
) -> tuple[Calls, ...]:
    """Return what DDP calls: an all_reduce of each bucket of fp32 gradients.

    The hooks ``bf16`` and ``fp16`` halve them. ``powersgd`` of rank 1 (Vogels et al., arXiv
    1905.13727) has three of each bucket: what is not worth to be compressed, and the two vectors
    that stand for each matrix of the rest.
    """
    filled = buckets(parameters.tensors, bucket_mb)
    if hook != "powersgd":
        sizes = [sum(item.elements for item in bucket) * _COMPRESSED[hook] for bucket in filled]
        return (calls("all_reduce", ranks, sizes),)
    return (calls("all_reduce", ranks, [4 * part for bucket in filled
                                        for part in _powersgd(bucket)]),)


def buckets(parameters: Sequence[Tensor], bucket_mb: int) -> list[list[Tensor]]:
    """Return the buckets of DDP: gradients in the order in which backward gives them.

    A bucket is full as soon as it has ``bucket_mb`` MiB (compute_bucket_assignment_by_size).
    """
    filled: list[list[Tensor]] = []
    space = 0
    for parameter in reversed(parameters):
        if space <= 0:
            filled.append([])
            space = bucket_mb * 2**20
        filled[-1].append(parameter)
        space -= parameter.held_bytes
    return filled


def _powersgd(bucket: Sequence[Tensor]) -> tuple[int, int, int]:
    """Return the elements that travel as they are, those of all P, and those of all Q."""
    shapes = [(item.extents[0], item.elements // item.extents[0]) for item in bucket]
    worth = [(rows, columns) for rows, columns in shapes
             if (rows + columns) * _WORTH < rows * columns]
    rest = sum(rows * columns for rows, columns in shapes if (rows, columns) not in worth)
    return rest, sum(rows for rows, _ in worth), sum(columns for _, columns in worth)


@lru_cache(maxsize=_KEPT)
def sharded_bytes(group: Parameters, shards: int, element_bytes: int) -> int:
    """Return the size of a group of parameters that FSDP gathers at once.

    Each is divided by its first extent, padded to equal shards.
    """
    return sum(-(-item.extents[0] // shards) * shards * (item.elements // item.extents[0])
               * travelling_bytes(item, element_bytes) for item in group.tensors)


def travelling_bytes(item: Tensor, element_bytes: int) -> int:
    """Return the bytes of an element of a parameter when it is gathered: packed ones stay so."""
    return 1 if item.element_bytes == 1 else element_bytes


def fsdp_calls(
    blocks: Sequence[Parameters], roots: Sequence[Parameters], groups: Groups,
) -> list[Calls]:
    """Return what FSDP calls for blocks, and for what else is gathered together.

    Each is gathered in forward and blocks, if ``reshard``, again in backward; gradients of what is
    trained are scattered in fp32, and averaged over ``copies`` of the shards (Rajbhandari et al.,
    ZeRO, arXiv 1910.02054, section 7). Without shards there are copies alone, and nothing to
    gather.
    """
    again = blocks if groups.reshard else ()
    gathered = of_each(lambda group: sharded_bytes(group, groups.shards, groups.element_bytes),
                       (*blocks, *roots, *again))
    scattered = of_each(lambda group: sharded_bytes(group, groups.shards, 4),
                        [group.trained for group in (*blocks, *roots) if group.trained.tensors])
    averaged = [size // groups.shards for size in scattered] * groups.exchanges
    traffic = []
    if groups.shards > 1:
        traffic = [calls("all_gather", groups.shards, gathered * groups.rounds),
                   calls("reduce_scatter", groups.shards, scattered * groups.exchanges)]
    if groups.copies > 1:
        traffic.append(calls("all_reduce", groups.copies, averaged))
    return traffic

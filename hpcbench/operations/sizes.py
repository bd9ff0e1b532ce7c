"""Sizes exactly as nccl-tests counts them, and the memory a case takes.

nccl-tests' size column S: the buffer of all_reduce, broadcast, reduce and send_recv; the parts of
all ranks together for all_gather, reduce_scatter, all_to_all, gather and scatter. Its count column
is in elements: S / e for the former, one rank's part for the latter. A part is rounded down to 16
bytes (nccl-tests: ``(count / nranks) & -(16 / e)``); S is what is left after rounding.

Parts that differ in size are whole multiples (`weights`) of one unit, which is a multiple of 16
bytes. Their S is the sum of all parts for all_gather and reduce_scatter. For all_to_all it is the
maximum over ranks of what a rank sends or receives, as in nccl-tests' alltoallv. Part d of every
rank's buffer goes to rank d, so this is n times the largest part.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.operations.collectives import collective_spec

COLD_BYTES = 2**27
"""What all sets of cold buffers hold at least: several times the last cache that ranks share."""
MOST_COLD_BYTES = 2**30
"""What they hold at most, on a GPU: four times the 256 MB of an MI300X. A B200 has 126 MB."""
_TIMES_CACHE = 4
"""As STREAM has it of its arrays (www.cs.virginia.edu/stream/ref.html)."""
MOST_COLD_SETS = 1024
DTYPE_BYTES: Mapping[str, int] = MappingProxyType({
    "fp32": 4, "fp64": 8, "fp16": 2, "bf16": 2, "int32": 4, "int64": 8, "uint8": 1,
})
"""Bytes per element of every dtype."""
PART_BYTES = 16
"""A rank's part is a multiple of this."""


def weights(split: str, world_size: int) -> tuple[int, ...]:
    """Return what the ranks' parts are proportional to.

    ``linear``: r + 1 for rank r; ``one_heavy``: n for rank 0, 1 for the others; ``zero``: nothing
    for the last rank, 1 for the others.
    """
    n = world_size
    if split == "linear":
        return tuple(range(1, n + 1))
    if split == "one_heavy":
        return (n, *(1,) * (n - 1))
    return (*(1,) * (n - 1), 0 if split == "zero" and n > 1 else 1)


def part_counts(split: str, world_size: int, count: int) -> list[int]:
    """Return the elements of every rank's part; ``count`` are those of the largest."""
    shares = weights(split, world_size)
    return [count // max(shares) * share for share in shares]


def rounded(
    collective: str, dtype: str, world_size: int, requested_bytes: int, split: str = "even",
) -> tuple[int, int]:
    """Return (size_bytes, count) of a collective over ``world_size`` ranks; (0, 0) if no data move.

    ``size_bytes`` is at most ``requested_bytes``, and 0 if nothing is left after rounding.
    """
    spec, element = collective_spec(collective), DTYPE_BYTES[dtype]
    if not spec.moves_data:
        return 0, 0
    if not spec.split:
        count = requested_bytes // element
        return count * element, count
    units = _units(collective, split, world_size)
    granule = PART_BYTES // element
    unit = requested_bytes // element // units // granule * granule
    return unit * units * element, unit * max(weights(split, world_size))


def smallest_bytes(collective: str, dtype: str, world_size: int, split: str = "even") -> int:
    """Return the smallest size that is not rounded to nothing."""
    if collective_spec(collective).split:
        return PART_BYTES * _units(collective, split, world_size)
    return DTYPE_BYTES[dtype]


def _units(collective: str, split: str, world_size: int) -> int:
    """Return S in units: of the sum of the parts, or n times the largest if it is pairwise."""
    shares = weights(split, world_size)
    return world_size * max(shares) if collective_spec(collective).pairwise else sum(shares)


def cold_bytes(cache_bytes: int | None) -> int:
    """Return what all sets of cold buffers hold on a device with this last cache, None unknown."""
    wanted = MOST_COLD_BYTES if cache_bytes is None else _TIMES_CACHE * cache_bytes
    return min(max(wanted, COLD_BYTES), MOST_COLD_BYTES)


def planned_cold_bytes(device: str) -> int:
    """Return the most that `cold_bytes` can be on a device of this type, of which no more is known.
    """
    return COLD_BYTES if device in ("cpu", "mps") else MOST_COLD_BYTES


def cold_sets(size_bytes: int, together_bytes: int = COLD_BYTES) -> int:
    """Return how many sets of buffers it takes until a call finds none of its own in a cache."""
    return max(math.ceil(together_bytes / max(size_bytes, 1)), 2)


def rank_bytes(
    collective: str, in_place: bool | None, world_size: int, size_bytes: int, split: str = "even",
) -> int:
    """Return the bytes of all buffers of the rank that holds most, for size ``size_bytes``.

    The kept input, the buffer the collective writes, and the expected result: in place the
    written buffer has the larger of the two sizes. Out of place, what else runs in place checks its
    input, too, and so makes it again.
    """
    spec, shares = collective_spec(collective), weights(split, world_size)
    units = _units(collective, split, world_size)
    part = size_bytes * max(shares) // units
    bytes_of = {"whole": size_bytes, "part": part, "nothing": 0}
    source = size_bytes * sum(shares) // units if spec.pairwise else bytes_of[spec.source]
    result = bytes_of[spec.result]
    written = max(source, result) if in_place else result
    proof = source if in_place is False and spec.in_place == (True,) else 0
    return written + result + source + proof

"""Sizes exactly as nccl-tests counts them, and the memory a case takes.

nccl-tests' size column S: the buffer of all_reduce, broadcast and send_recv; the parts of all
ranks together for all_gather, reduce_scatter and all_to_all. Its count column is in elements:
S / e for the former, one rank's part for the latter. A part is rounded down to 16 bytes
(nccl-tests: ``(count / nranks) & -(16 / e)``); S is what is left after rounding.
"""

from __future__ import annotations

from hpcbench.config.names import DTYPE_BYTES
from hpcbench.plan.support import COLLECTIVE_TRAITS

PART_BYTES = 16
"""A rank's part is a multiple of this."""


def rounded(collective: str, dtype: str, world_size: int, requested_bytes: int) -> tuple[int, int]:
    """Return (size_bytes, count) of a collective over ``world_size`` ranks; (0, 0) for barrier.

    ``size_bytes`` is at most ``requested_bytes``, and 0 if nothing is left after rounding.
    """
    if collective == "barrier":
        return 0, 0
    element = DTYPE_BYTES[dtype]
    if not COLLECTIVE_TRAITS[collective].split:
        count = requested_bytes // element
        return count * element, count
    granule = PART_BYTES // element
    count = requested_bytes // element // world_size // granule * granule
    return count * world_size * element, count


def smallest_bytes(collective: str, dtype: str, world_size: int) -> int:
    """Return the smallest size that is not rounded to nothing."""
    if COLLECTIVE_TRAITS[collective].split:
        return PART_BYTES * world_size
    return DTYPE_BYTES[dtype]


def rank_bytes(
    collective: str, in_place: bool | None, world_size: int, size_bytes: int
) -> int:
    """Return the bytes of all buffers a rank holds for a case of size ``size_bytes``.

    The kept input, the buffer the collective writes, and the expected result: in place the
    written buffer has the larger of the two sizes, broadcast keeps no input of its own.
    """
    part = size_bytes // world_size
    source = part if collective == "all_gather" else size_bytes
    result = part if collective == "reduce_scatter" else size_bytes
    written = max(source, result) if in_place else result
    return written + result + (0 if collective == "broadcast" else source)

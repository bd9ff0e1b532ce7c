"""Test data that are exact in every dtype, and the comparison of results with what they must be.

Element ``j`` of rank ``r`` is derived from ``h = (7 j + 131 r) mod 8191``. It is cut to a range in
which the dtype holds the collective's result exactly, as an integer. So any order of summation
gives the same bits, and the tolerance is 0. The pattern repeats every 8191 elements. This is a
prime, so no block of a power-of-two size maps onto itself. Expected results are cheap at any size
and any number of ranks: one period is computed in int64, then tiled.

No element of sent numbers or of their results is 0, so that a factor on a result changes all of it.
Of bool half are false.

For ``avg`` every contribution is a multiple of the number of ranks, so that quotients are exact,
before or after the sum. Where the dtype has no such numbers, or where multiplying them by
its own 1 / n would round (`average_is_exact`), results are compared within 2 units in the last
place, as nccl-tests does for its avg. NCCL divides the sum of integers and cuts the rest off, which
leaves 0 of uint8 over more than 254 ranks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import Any

import torch
import torch.distributed as dist

DTYPES = {
    "fp32": torch.float32, "fp64": torch.float64, "fp16": torch.float16, "bf16": torch.bfloat16,
    "int32": torch.int32, "int64": torch.int64, "uint8": torch.uint8, "int8": torch.int8,
    "bool": torch.bool, "complex64": torch.complex64, "complex128": torch.complex128,
}


def renamed(module: Any, name: str, old_name: str) -> Any:
    """Return an attribute of a torch module by its new name or, in an older torch, its old one."""
    return getattr(module, name, None) or getattr(module, old_name)


all_gather_tensor = renamed(dist, "all_gather_single", "all_gather_into_tensor")
reduce_scatter_tensor = renamed(dist, "reduce_scatter_single", "reduce_scatter_tensor")


PERIOD = 8191
PRODUCT_FACTORS = 3  # at most 3 ranks contribute a factor of 1..3 to one element: 27 fits any dtype

_EXACT_LIMIT = {
    torch.float16: 2**11, torch.bfloat16: 2**8, torch.float32: 2**24, torch.float64: 2**24,
    torch.int32: 2**24, torch.int64: 2**24, torch.uint8: 2**8 - 2,  # 255 is its poison
    torch.int8: 2**7 - 2, torch.complex64: 2**24, torch.complex128: 2**24,
}
_MOVED_MODULUS = {torch.uint8: 251, torch.int8: 113, torch.bfloat16: 251, torch.float16: 2039}
_BITS = {torch.uint8: 2**7 - 1, torch.int8: 2**6 - 1}
"""Bits of operands of bitwise reductions, below the poison; of larger types: 2**13 - 1."""


def moved(rank: int, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """Return elements ``start .. start + count`` of what ``rank`` sends when nothing is reduced."""
    if dtype == torch.bool:
        return _tile(_drawn_bits(rank), start, count, dtype)
    modulus = _MOVED_MODULUS.get(dtype, PERIOD)
    return _tile(1 + _hash(rank, modulus) % modulus, start, count, dtype)


def contributed(
    rank: int, world_size: int, op: str, count: int, dtype: torch.dtype, first: int | range = 0,
) -> torch.Tensor:
    """Return the first ``count`` elements of what ``rank`` contributes to a reduction.

    ``rank`` is one of a group of ``world_size`` whose rank 0 is the global rank ``first``, or whose
    global ranks those are."""
    numbers = _numbers(world_size, first)
    return _tile(_contribution(rank, numbers, op, dtype), 0, count, dtype)


def reduced(
    world_size: int, op: str, start: int, count: int, dtype: torch.dtype, first: int | range = 0,
) -> torch.Tensor:
    """Return elements ``start .. start + count`` of a reduction; ``first`` as in `contributed`."""
    numbers = _numbers(world_size, first)
    combine = _COMBINED[_OF_BOOL.get(op, op) if dtype == torch.bool else op]
    table = reduce(combine, (_contribution(rank, numbers, op, dtype)
                             for rank in range(world_size)))
    if op == "avg":
        table = table.to(torch.float64) / world_size
    return _tile(table, start, count, dtype)


def poison(dtype: torch.dtype) -> float | int:
    """Return a value that no result contains: outputs hold it before they are written."""
    if dtype.is_floating_point or dtype.is_complex:
        return float("nan")
    return int(torch.iinfo(_bytes_of_bool(dtype)).max)


def wipe(tensor: torch.Tensor) -> None:
    """Fill with `poison`; of bool with bytes that are neither true nor false."""
    tensor.view(_bytes_of_bool(tensor.dtype)).fill_(poison(tensor.dtype))


def flip(tensor: torch.Tensor) -> None:
    """Flip a bit of the last element, as a fault of memory does: the lowest of its highest byte, so
    that no tolerance allows the result."""
    if tensor.numel():
        tensor.reshape(-1)[-1:].view(torch.uint8)[-1:].bitwise_xor_(1)


def _bytes_of_bool(dtype: torch.dtype) -> torch.dtype:
    return torch.uint8 if dtype == torch.bool else dtype


def _hash(rank: int, modulus: int = PERIOD) -> torch.Tensor:
    """Return one period. Ranks differ modulo ``modulus``, in the first element or in the second.

    There are only so many first elements: ranks that have the same one differ in their step."""
    step, offset = 7 + rank // modulus, 131 * rank % modulus
    return (step * torch.arange(PERIOD, dtype=torch.int64) + offset) % PERIOD


def _numbers(world_size: int, first: int | range) -> range:
    return first if isinstance(first, range) else range(first, first + world_size)


def _contribution(rank: int, numbers: range, op: str, dtype: torch.dtype) -> torch.Tensor:
    """Return one period of what a rank of a group of these global ranks contributes.

    Values depend on the global rank. Which elements a rank has a part in depends on the rank within
    its group: in steps of a stride, global ranks would meet in the same elements."""
    hashed, world_size = _hash(numbers[rank]), len(numbers)
    if dtype == torch.bool:
        return _bool_operand(numbers[rank], rank, world_size, _OF_BOOL.get(op, op))
    if op in ("band", "bor", "bxor"):
        return _bitwise_operand(hashed, rank, world_size, op, _BITS.get(dtype, 2**13 - 1))
    limit = _EXACT_LIMIT[dtype]
    if op == "avg" and world_size**2 <= limit:
        return world_size * _summand(hashed, rank, world_size, limit // world_size)
    if op in ("sum", "avg"):
        return _summand(hashed, rank, world_size, limit)
    if op == "prod":
        return torch.where(_active(rank, world_size, PRODUCT_FACTORS), 1 + hashed % 3, 1)
    return 1 + hashed % (min(limit, PERIOD) - 1)  # min, max


_COMBINED: Mapping[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "sum": torch.add, "avg": torch.add, "prod": torch.mul, "min": torch.minimum,
    "max": torch.maximum, "band": torch.bitwise_and, "bor": torch.bitwise_or,
    "bxor": torch.bitwise_xor}
_OF_BOOL = {"sum": "bor", "max": "bor", "prod": "band", "min": "band"}
"""What the reductions of numbers are of true and false."""


def _active(rank: int, world_size: int, most: int) -> torch.Tensor:
    """Return which elements of a period a rank has a part in: ``most`` ranks have one in each."""
    return (torch.arange(PERIOD) + rank) % world_size < most


_OF_NUMBER, _INVERTED = 17, 0b1_0110_1001_0110_1001
"""Bits of the number of a rank: there are at most 2**17 (`operations.collectives`)."""


def _drawn_bits(rank: int) -> torch.Tensor:
    """Return a period of 0 and 1 without a pattern, in which ranks differ: the first elements are
    their number's own bits, some of them inverted, so that no rank's are all 0."""
    bits = _hash(rank) * 2654435761 >> 16 & 1
    bits[:_OF_NUMBER] = (rank ^ _INVERTED) >> torch.arange(_OF_NUMBER) & 1
    return bits


def _bool_operand(number: int, rank: int, world_size: int, op: str) -> torch.Tensor:
    """Return 0 and 1; one rank alone decides each element of ``band`` and ``bor``."""
    bits = _drawn_bits(number)
    if op == "bxor":
        return bits
    return torch.where(_active(rank, world_size, 1), bits, int(op == "band"))


def _bitwise_operand(
    hashed: torch.Tensor, rank: int, world_size: int, op: str, mask: int,
) -> torch.Tensor:
    """Return operands whose result has a bit that is set; few ranks decide ``band`` and ``bor``."""
    bits = 1 + hashed % mask
    if op == "bxor":  # an odd number of ranks sets the last bit
        return bits & ~1 | 2 if rank == 0 and world_size % 2 == 0 else bits | 1
    active = _active(rank, world_size, PRODUCT_FACTORS)
    return torch.where(active, bits | 1, mask) if op == "band" else torch.where(active, bits, 0)


def average_is_exact(world_size: int, dtype: torch.dtype) -> bool:
    """Return whether averages are exact, also where the parts or their sum are multiplied by 1 / n.

    NCCL does the former (ncclAvg), in the dtype, but of integers it divides the sum: there is one
    result. Powers of two round nothing."""
    limit, dtype = _EXACT_LIMIT[dtype], dtype.to_real()
    if not dtype.is_floating_point or world_size & (world_size - 1) == 0:
        return True
    most = min(limit // world_size, world_size * PERIOD)
    averages = torch.arange(1, most + 1).to(dtype)
    inverse = torch.ones((), dtype=dtype) / world_size
    return bool(
        world_size**2 <= limit and torch.equal(averages * world_size * inverse, averages))


def _summand(hashed: torch.Tensor, rank: int, world_size: int, limit: int) -> torch.Tensor:
    """Return values whose sum over all ranks stays within ``limit``.

    With more ranks than the dtype can count, only every ``stride``-th rank adds 1 to an element."""
    largest = limit // world_size
    if largest >= 1:
        return 1 + hashed % largest
    stride = -(-2 * world_size // limit)
    return ((torch.arange(PERIOD) + rank) % stride == 0).to(torch.int64)


def _tile(table: torch.Tensor, start: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    offset = start % PERIOD
    repeats = -(-(offset + count) // PERIOD)
    if dtype.is_complex:  # reductions are linear: the imaginary parts are the next real ones
        table = torch.complex(table.double(), table.roll(-1).double())
    return table.to(dtype).repeat(max(repeats, 1))[offset:offset + count].clone()


_PIECE = 2**18  # elements compared at a time
AVG_ULPS = 2  # nccl-tests allows the same for its floating-point avg


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The wrong elements of one output: how many of how many, and the first of them; ``bits`` are
    those of it that differ, in hex, "" where both are not of one type."""

    n_wrong: int
    n_elements: int
    first_index: int
    got: str
    expected: str
    bits: str = ""

    @property
    def words(self) -> str:
        bits = f", bits {self.bits} differ" if self.bits else ""
        return (f"{self.n_wrong} of {self.n_elements} elements, first index {self.first_index}: "
                f"got {self.got}, expected {self.expected}{bits}")


def compare(got: torch.Tensor, expected: torch.Tensor, *, ulps: int = 0) -> Mismatch | None:
    """Return the mismatch, or None if every element is right; NaN is never right.

    Equal tensors are compared once: checks stand between samples, whose caches they empty."""
    ours, theirs = (one.reshape(-1).view(_bytes_of_bool(one.dtype)) for one in (got, expected))
    if ours.dtype == theirs.dtype and all(
            torch.equal(ours[start:start + _PIECE], theirs[start:start + _PIECE])
            for start in range(0, len(ours), _PIECE)):
        return None
    return mismatch(ours, theirs, lambda piece: _right(ours[piece], theirs[piece], ulps))


def mismatch(
    ours: torch.Tensor, theirs: torch.Tensor, right: Callable[[slice], torch.Tensor],
) -> Mismatch | None:
    """Return the mismatch of flat tensors, or None; ``right`` shows which of some elements are.

    Compared piece by piece: a case needs no more memory for its check than for its buffers."""
    n_wrong, first = 0, -1
    for start in range(0, len(ours), _PIECE):
        wrong = torch.nonzero(~right(slice(start, start + _PIECE)))
        if first < 0 and len(wrong):
            first = start + int(wrong[0])
        n_wrong += len(wrong)
    if not n_wrong:
        return None
    return Mismatch(n_wrong, len(ours), first, str(ours[first].item()), str(theirs[first].item()),
                    _different_bits(ours[first:first + 1], theirs[first:first + 1]))


def _different_bits(got: torch.Tensor, expected: torch.Tensor) -> str:
    if got.dtype != expected.dtype:
        return ""
    different = torch.bitwise_xor(*(  # a view of each second element has a stride of 2
        one.cpu().clone(memory_format=torch.contiguous_format).view(torch.uint8)
        for one in (got, expected)))
    return f"0x{bytes(different.tolist()[::-1]).hex()}"


def _right(got: torch.Tensor, expected: torch.Tensor, ulps: int) -> torch.Tensor:
    if got.is_complex() and ulps:
        return _right(torch.view_as_real(got), torch.view_as_real(expected), ulps).all(-1)
    if not ulps or not got.dtype.is_floating_point:
        return got == expected
    exact = expected.to(torch.float64)
    bound = ulps * torch.finfo(got.dtype).eps * exact.abs()
    return (got.to(torch.float64) - exact).abs() <= bound

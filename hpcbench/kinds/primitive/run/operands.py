"""Operands of matrix products whose results are exact wherever the dtype allows it.

Operands are integers of a small range. The dtype holds every product and every partial sum exactly,
in any order, if (inner extent) x (largest left) x (largest right) <= 2^(bits of its significand).
Then a result is right or wrong, with no tolerance. Otherwise the operands are normally distributed
and `expected` bounds the error.

No integer is 0. The left operand is positive, and so is the right one's first column: the first
column of every partial sum is positive, so one that is lost, or a wrong factor, shows at any size.

All ranks draw the same global matrices from the same seed and keep their parts, so that each can
compute what it must end with.
"""

from __future__ import annotations

import math

import torch

from hpcbench.kinds.primitive.plan.demands import SIGNIFICAND_BITS
from hpcbench.operations.dtypes import DTYPES

_MAGNITUDES = (8, 4, 2, 1)


def magnitude(dtype: str, *inner: int) -> int:
    """Return the largest magnitude of integer operands with exact results; 0 if there is none.

    ``inner`` are the extents that sums run over, on all ranks together: one for a product, two for
    a product of a product. Let s be the right operands' magnitude and t the left one's. Then a
    product's results are up to K t s, and its product with another operand is up to N K t s^2.
    """
    limit = 2 ** SIGNIFICAND_BITS[dtype]
    return next((size for size in _MAGNITUDES
                 if math.prod(inner) * _largest_left(size) * size ** len(inner) <= limit), 0)


def left_operand(shape: tuple[int, ...], dtype: str, size: int, seed: int) -> torch.Tensor:
    """Return a global operand on the CPU: integers from 1, of `magnitude` size; 0: normal numbers.

    They go to 2 where size is 1, for a matrix of ones would hide an exchange of its parts.
    """
    generator = torch.Generator().manual_seed(seed)
    if size == 0:
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    drawn = torch.randint(1, _largest_left(size) + 1, shape, generator=generator, dtype=torch.int8)
    return drawn.to(DTYPES[dtype])


def right_operand(
    shape: tuple[int, ...], dtype: str, size: int, seed: int, parts: int = 1,
) -> torch.Tensor:
    """Return a global operand on the CPU: integers from -size to size but 0, or normal numbers.

    The first column of each of ``parts`` equal blocks of columns is positive (so blocks of one
    column and size 1 are all alike).
    """
    generator = torch.Generator().manual_seed(seed)
    if size == 0:
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    drawn = torch.randint(1, 2 * size + 1, shape, generator=generator, dtype=torch.int8)
    signed = drawn - size - (drawn <= size).to(torch.int8)
    signed[..., ::shape[-1] // parts].abs_()
    return signed.to(DTYPES[dtype])


def _largest_left(size: int) -> int:
    return max(size, 2)


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next number of the dtype."""
    return math.ldexp(1.0, -SIGNIFICAND_BITS[dtype])


def accumulated_roundoff(dtype: str) -> float:
    """Return the unit roundoff that torch computes in: fp32's for shorter dtypes."""
    return unit_roundoff("fp64" if dtype == "fp64" else "fp32")

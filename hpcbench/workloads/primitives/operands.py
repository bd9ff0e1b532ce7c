"""Operands of matrix products whose results are exact wherever the dtype allows it.

Integers of a small range: every product and every partial sum, in whatever order it is formed, is
an integer that the dtype holds exactly if (inner extent) x (largest magnitude)^2 is at most
2^(bits of its significand). Then a result is right or wrong, with no tolerance. Otherwise the
operands are normally distributed and `expected` bounds the error.

All ranks draw the same global matrices from the same seed and keep their parts, so that each can
compute what it must end with.
"""

from __future__ import annotations

import math

import torch

SIGNIFICAND_BITS = {"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8}
"""IEEE 754 binary64, 32, 16 and bfloat16, with the hidden bit."""
_MAGNITUDES = (8, 4, 2, 1)
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "fp16": torch.float16,
          "bf16": torch.bfloat16}


def magnitude(dtype: str, *inner: int) -> int:
    """Return the largest magnitude of integer operands with exact results; 0 if there is none.

    ``inner`` are the extents that sums run over, on all ranks together: one for a product, two for
    a product of a product. Of s as the magnitude, a product's results are up to K s^2, and those
    of the product of them with a third operand up to N K s^3.
    """
    limit = 2 ** SIGNIFICAND_BITS[dtype]
    return next((size for size in _MAGNITUDES
                 if math.prod(inner) * size ** (len(inner) + 1) <= limit), 0)


def operand(shape: tuple[int, ...], dtype: str, size: int, seed: int) -> torch.Tensor:
    """Return a global operand on the CPU: integers from -size to size but 0, or normal numbers.

    Without zeros no partial sum is lost unseen.
    """
    generator = torch.Generator().manual_seed(seed)
    if size == 0:
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    drawn = torch.randint(1, 2 * size + 1, shape, generator=generator, dtype=torch.int8)
    return (drawn - size - (drawn <= size).to(torch.int8)).to(DTYPES[dtype])


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next number of the dtype."""
    return math.ldexp(1.0, -SIGNIFICAND_BITS[dtype])


def accumulated_roundoff(dtype: str) -> float:
    """Return the unit roundoff that torch computes in: fp32's for shorter dtypes."""
    return unit_roundoff("fp64" if dtype == "fp64" else "fp32")

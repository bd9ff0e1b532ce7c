"""What a matrix product must be: one fp64 reference on the CPU, and how far a result may be off.

Exact operands leave no tolerance. For others the bound is derived, element by element, from that
right operands are normally distributed, so that the K terms of a sum have random signs:

- The sum of any of the terms t is within LAMBDA ||t||, and so are the sums that are rounded on the
  way: in fp32 (what torch does for fp32, fp16 and bf16; in fp64 for fp64). K roundings of that
  size, independent and of mean 0, add up to LAMBDA^2 sqrt(K) u ||t|| at most: Higham and Mary,
  Sharper Probabilistic Backward Error Analysis for Basic Linear Algebra Kernels with Random Data,
  SIAM J. Sci. Comput. 42 (2020). Hoeffding's inequality: each of them is exceeded with a
  probability of 2 exp(-LAMBDA^2 / 2) = 3e-14.
- An error e of the left operand becomes LAMBDA ||e w||, for the same reason.
- Each partial sum is rounded to the dtype: u |P|.
- The sum of d partial sums in any order is rounded to the dtype after each of d - 1 additions:
  (d - 1) u (sum of |P|), with no terms of higher order: Jeannerod and Rump, Improved Error Bounds
  for Inner Products in Floating-Point Arithmetic, SIAM J. Matrix Anal. Appl. 34 (2013).
- Below the dtype's normal numbers a rounding is off by u times the smallest of them.

u is the unit roundoff of the dtype concerned.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from hpcbench.workloads.collectives.check import Mismatch
from hpcbench.workloads.primitives.operands import (
    DTYPES,
    accumulated_roundoff,
    unit_roundoff,
)

LAMBDA = 8.0
_PIECE = 2**18  # elements compared at a time


@dataclass(frozen=True, slots=True)
class Expected:
    """fp64 on the CPU, in the shape of the output; ``bound`` is None where it must be exact."""

    value: torch.Tensor
    bound: torch.Tensor | None = None

    def flat(self) -> Expected:
        """Return the same in one dimension."""
        bound = None if self.bound is None else self.bound.reshape(-1)
        return Expected(self.value.reshape(-1), bound)


def joined(items: Sequence[Expected]) -> Expected:
    """Return several results, one after the other along the first dimension."""
    value = torch.cat([item.value for item in items])
    if all(item.bound is None for item in items):
        return Expected(value)
    return Expected(value, torch.cat([
        torch.zeros_like(item.value) if item.bound is None else item.bound for item in items]))


def product(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], dtype: str, *, exact: bool,
    errors: Sequence[torch.Tensor | None] | None = None,
) -> Expected:
    """Return the sum of the products of ``parts``, each formed on a rank and rounded there.

    ``parts`` are (..., rows, inner) and (inner, columns). ``errors`` (..., rows, inner) are how far
    the left operands may already be off.
    """
    value = _summed(left.double() @ right.double() for left, right in parts)
    return Expected(value, None if exact else _bound(parts, dtype, errors or [None] * len(parts)))


def _bound(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], dtype: str,
    errors: Sequence[torch.Tensor | None],
) -> torch.Tensor:
    """Return how far the sum of products may be off, as the module's text derives it."""
    absolute = _summed((left.double() @ right.double()).abs() for left, right in parts)
    spread, passed = torch.zeros_like(absolute), torch.zeros_like(absolute)
    for (left, right), error in zip(parts, errors, strict=True):
        largest, squares = left.double().abs(), right.double().square()
        if error is not None:
            largest = largest + error
            passed += error.square() @ squares
        spread += (largest.square() @ squares).sqrt()
    passed = LAMBDA * passed.sqrt()
    # the reference's own sums are rounded, too
    roundoff = accumulated_roundoff(dtype) + unit_roundoff("fp64")
    accumulated = LAMBDA**2 * math.sqrt(parts[0][0].shape[-1]) * roundoff * spread
    stored = len(parts) * unit_roundoff(dtype) * (
        absolute + passed + torch.finfo(DTYPES[dtype]).smallest_normal)
    return accumulated + stored + passed


def _summed(terms: Iterator[torch.Tensor]) -> torch.Tensor:
    """Return the sum of at least one tensor, holding one of them at a time."""
    total = next(terms).clone()
    for term in terms:
        total += term
    return total


def compare(got: torch.Tensor, expected: Expected) -> Mismatch | None:
    """Return the mismatch of a whole output, or None if every element is within its bound.

    NaN is never right, nor is an output of another shape.
    """
    if got.shape != expected.value.shape:
        return Mismatch(got.numel(), expected.value.numel(), 0, f"shape {tuple(got.shape)}",
                        f"shape {tuple(expected.value.shape)}")
    ours, theirs = got.reshape(-1), expected.value.reshape(-1)
    bounds = None if expected.bound is None else expected.bound.reshape(-1)
    n_wrong, first = 0, -1
    for start in range(0, len(ours), _PIECE):
        piece = slice(start, start + _PIECE)
        off = (ours[piece].cpu().double() - theirs[piece]).abs()
        wrong = torch.nonzero(~(off <= (0.0 if bounds is None else bounds[piece])))
        if first < 0 and len(wrong):
            first = start + int(wrong[0])
        n_wrong += len(wrong)
    if not n_wrong:
        return None
    return Mismatch(n_wrong, len(ours), first, str(ours[first].item()), str(theirs[first].item()))

"""What a matrix product must be: one fp64 reference on the CPU, and how far a result may be off.

Exact operands leave no tolerance. For others the bound is derived, element by element:

- products accumulated over K terms in fp32 (what torch does for fp32, fp16 and bf16; in fp64 for
  fp64) differ by at most LAMBDA sqrt(K) u |A| |W|: Higham and Mary, A New Approach to Probabilistic
  Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), Theorem 2.4; a result beyond it has a
  probability below 2 exp(-LAMBDA^2 / 2) for each operation;
- each partial sum rounded to the dtype: u |P|;
- the sum of d partial sums in any order, rounded to the dtype after each of d - 1 additions:
  (d - 1) u (sum of |P|), with no terms of higher order: Jeannerod and Rump, Improved Error Bounds
  for Inner Products in Floating-Point Arithmetic, SIAM J. Matrix Anal. Appl. 34 (2013);
- below the dtype's normal numbers a rounding is off by u times the smallest of them.

u is the unit roundoff of the dtype concerned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    error: torch.Tensor | None = None,
) -> Expected:
    """Return the sum of the products of ``parts``, each formed on a rank and rounded there.

    ``parts`` are (..., rows, inner) and (inner, columns). ``error`` (rows, all inners) is how far
    the left operands, side by side, may already be off.
    """
    values, absolute, magnitudes = torch.zeros(()).double(), torch.zeros(()), torch.zeros(())
    for left, right in parts:
        partial = left.double() @ right.double()
        values = values + partial
        if not exact:
            absolute = absolute + partial.abs()
            magnitudes = magnitudes + left.double().abs() @ right.double().abs()
    if exact:
        return Expected(values)
    # the reference's own products are rounded, too
    accumulated = LAMBDA * math.sqrt(parts[0][0].shape[-1]) * (
        accumulated_roundoff(dtype) + unit_roundoff("fp64"))
    rounded = len(parts) * unit_roundoff(dtype)
    smallest = torch.finfo(DTYPES[dtype]).smallest_normal
    bound = accumulated * magnitudes + rounded * (absolute + smallest)
    if error is not None:
        weights = torch.cat([right for _, right in parts]).double().abs()
        bound = bound + (1 + accumulated + rounded) * (error @ weights)
    return Expected(values, bound)


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

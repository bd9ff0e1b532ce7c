"""What a matrix product must be: one fp64 reference on the CPU, and how far a result may be off.

Exact operands leave no tolerance. For others the bound is derived, element by element:

- products accumulated over K terms in fp32 (what torch does for fp32, fp16 and bf16; in fp64 for
  fp64) differ by at most LAMBDA sqrt(K) u |A| |W|: Higham and Mary, A New Approach to Probabilistic
  Rounding Error Analysis, SIAM J. Sci. Comput. 41 (2019), Theorem 2.4; a result beyond it has a
  probability below 2 exp(-LAMBDA^2 / 2) for each operation;
- each partial sum rounded to the dtype: u |P|;
- the sum of d partial sums in any order, rounded to the dtype after each of d - 1 additions:
  (d - 1) u (sum of |P|).

u is the unit roundoff of the dtype concerned.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from hpcbench.workloads.collectives.check import Mismatch
from hpcbench.workloads.primitives.operands import unit_roundoff

LAMBDA = 8.0
_PIECE = 2**18  # elements compared at a time


@dataclass(frozen=True, slots=True)
class Expected:
    """fp64 on the CPU, in the shape of the output; ``bound`` is None where it must be exact."""

    value: torch.Tensor
    bound: torch.Tensor | None = None


def product(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], dtype: str, *, exact: bool,
    roundings: int | None = None, error: torch.Tensor | None = None,
) -> Expected:
    """Return the sum of the products of ``parts``, each formed on a rank and rounded there.

    ``roundings`` is how often sums of them are rounded, by default one less than there are parts.
    ``error`` (rows, inner) is how far the left operands, side by side, may already be off.
    """
    partial = [left.double() @ right.double() for left, right in parts]
    value = torch.stack(partial).sum(0) if len(partial) > 1 else partial[0]
    if exact:
        return Expected(value)
    absolute = torch.stack([part.abs() for part in partial]).sum(0)
    magnitudes = sum((left.double().abs() @ right.double().abs() for left, right in parts),
                     torch.zeros_like(value))
    inner = parts[0][0].shape[1]
    additions = len(parts) - 1 if roundings is None else roundings
    accumulated = unit_roundoff("fp64" if dtype == "fp64" else "fp32")
    bound = (LAMBDA * math.sqrt(inner) * accumulated * magnitudes
             + (1 + additions) * unit_roundoff(dtype) * absolute)
    if error is not None:
        weights = torch.cat([right for _, right in parts]).double().abs()
        bound = bound + error @ weights
    return Expected(value, bound)


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

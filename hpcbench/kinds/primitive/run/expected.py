"""Operands of matrix products, and what a product must be: one fp64 reference on the CPU.

Operands are integers of a small range. The dtype holds every product and every partial sum exactly,
in any order, if (inner extent) x (largest left) x (largest right) <= 2^(bits of its significand).
Then a result is right or wrong, with no tolerance. Otherwise the operands are normally distributed
and the error is bounded.

No integer is 0. The left operand is positive, and so is the right one's first column: the first
column of every partial sum is positive, so one that is lost, or a wrong factor, shows at any size.

All ranks draw the same global matrices from the same seed and keep their parts, so that each can
compute what it must end with.

Exact operands leave no tolerance. For others the bound is derived, element by element, from that
right operands are normally distributed, so that the K terms of a sum have random signs:

- The sum of any of the terms t is within LAMBDA ||t||, and so are the sums that are rounded on the
  way: in fp32 (what torch does for fp32, fp16 and bf16, on a GPU as `backends.devices.add_in_fp32`
  asks; in fp64 for fp64). K roundings of that
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

u is the unit roundoff of the dtype concerned. Of the reference only the value is computed in fp64;
the terms of the bound, none of them negative, are in fp32, and it is widened by what they can lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from hpcbench.kinds.primitive.plan.exactness import SIGNIFICAND_BITS
from hpcbench.operations.check import Mismatch, mismatch
from hpcbench.operations.dtypes import DTYPES

_MAGNITUDES = (8, 4, 2, 1)
LAMBDA = 8.0
_FP32_STEPS = 16  # roundings of an element of the bound beside those of its sums
Activation = Callable[[torch.Tensor], torch.Tensor]
IN_PLACE: Mapping[str, Activation] = MappingProxyType(
    {"relu": torch.relu_, "gelu": torch.ops.aten.gelu_})
"""gelu is the exact one, x (1 + erf(x / sqrt 2)) / 2: torch.nn.functional.gelu's default."""
_GELU_SLOPE = 1.129  # the largest slope of gelu: Phi(sqrt 2) + sqrt 2 phi(sqrt 2) = 1.12890
_ERF_ROUNDINGS = 4  # at most 1 ulp of erf, its argument's rounding, 1 + erf, and two products


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


@dataclass(frozen=True, slots=True)
class Expected:
    """In the shape of the output, on the CPU: ``value`` in fp64, and ``bound`` in fp32.

    ``bound`` is None where the output must be exact.
    """

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
        torch.zeros_like(item.value, dtype=torch.float32) if item.bound is None else item.bound
        for item in items]))


def product(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], dtype: str, *, exact: bool,
    errors: Sequence[torch.Tensor | None] | None = None,
) -> Expected:
    """Return the sum of the products of ``parts``, each formed on a rank and rounded there.

    ``parts`` are (..., rows, inner) and (inner, columns). ``errors`` (..., rows, inner) are how far
    the left operands may already be off.
    """
    if exact:
        return Expected(_exact_sum(parts))
    inner = parts[0][0].shape[-1]
    value, absolute = _sums(parts)
    spread, passed = _norms(parts, errors or [None] * len(parts))
    # the reference's own sums are rounded, too
    roundoff = accumulated_roundoff(dtype) + unit_roundoff("fp64")
    spread *= LAMBDA**2 * math.sqrt(inner) * roundoff
    passed *= LAMBDA
    absolute += passed + torch.finfo(DTYPES[dtype]).smallest_normal
    bound = absolute.mul_(len(parts) * unit_roundoff(dtype)).add_(spread).add_(passed)
    return Expected(value, bound.mul_(1 + (inner + len(parts) + _FP32_STEPS) * 2.0**-23))


def _exact_sum(parts: Sequence[tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return the sum of the products in fp64; added in place, it holds one more at a time."""
    total: torch.Tensor | None = None
    for left, right in parts:
        term = left.double() @ right.double()
        total = term if total is None else total.add_(term)
        del term  # otherwise there are three while the next one is made
    assert total is not None
    return total


def _sums(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of the products in fp64, and the sum of their magnitudes in fp32."""
    value = absolute = None
    for left, right in parts:
        term = left.double() @ right.double()
        size = term.abs().float()
        value = term if value is None else value.add_(term)
        absolute = size if absolute is None else absolute.add_(size)
    assert value is not None and absolute is not None
    return value, absolute


def _norms(
    parts: Sequence[tuple[torch.Tensor, torch.Tensor]], errors: Sequence[torch.Tensor | None],
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the sum of ||t|| over the parts, and sqrt of the sum of ||e w||^2, in fp32."""
    spread = passed = torch.zeros(())
    for (left, right), error in zip(parts, errors, strict=True):
        largest, squares = left.float().abs(), right.float().square()
        if error is not None:
            largest += error
            passed = passed + error.square() @ squares
        spread = spread + (largest.square_() @ squares).sqrt_()
    return spread, passed.sqrt()


def activated(before: Expected, name: str, dtype: str) -> Expected:
    """Return the activation of a result in fp64, and how far one in the dtype may be off.

    relu is exact, and brings no two numbers further apart. gelu brings them 1.129 times as far
    apart at most. It is computed in fp32 (fp64 for fp64), where 1 + erf is off by a few units
    however small it is: 4 u |x|. Its result is rounded to the dtype: u |gelu|, or, where that is
    too small for a normal number, half the smallest number.
    """
    x, off = before.value, before.bound
    if name == "relu":
        return Expected(x.relu(), off)
    value = torch.nn.functional.gelu(x)
    if off is None:
        off = torch.zeros_like(x, dtype=torch.float32)
    passed = _GELU_SLOPE * off + _ERF_ROUNDINGS * accumulated_roundoff(dtype) * (x.abs() + off)
    rounding = unit_roundoff(dtype) * (
        value.abs() + passed + torch.finfo(DTYPES[dtype]).smallest_normal)
    return Expected(value, (passed + rounding).float())


def compare(got: torch.Tensor, expected: Expected) -> Mismatch | None:
    """Return the mismatch of a whole output, or None if every element is within its bound.

    NaN is never right, nor is an output of another shape.
    """
    if got.shape != expected.value.shape:
        return Mismatch(got.numel(), expected.value.numel(), 0, f"shape {tuple(got.shape)}",
                        f"shape {tuple(expected.value.shape)}")
    ours, flat = got.reshape(-1), expected.flat()

    def right(piece: slice) -> torch.Tensor:
        off = (ours[piece].cpu().double() - flat.value[piece]).abs()
        return off <= (0.0 if flat.bound is None else flat.bound[piece])

    return mismatch(ours, flat.value, right)

"""Operands of matrix products, and the expected product: one fp64 reference on the CPU.

All ranks draw the same global matrices from the same seed and keep their parts, so that each can
compute its expected result. Operands are integers with exact results, so a result is right or
wrong, with no tolerance. Almost all terms of each sum cancel: they lie on the ranks in equal parts,
and in each part they are put together by a random draw, in pairs with the same left factor and
opposite right ones, or three with right factors w, w and -2 w. A few terms are in no group: the
signals. So a part's sum is that of its signals' products, whatever the extent (`plan.demands`):

- No element of an operand is 0, nor is one of a result. Signals on the left are positive, those on
  the right have one sign a column. A factor on a result, or a lost part, changes every element.
  With more ranks than a dtype can count, each has signals in some columns only (`Sizes.stride`), 0
  in the others. A lost part then changes its own columns.
- A wrong factor, a tile that is lost or taken twice, and parts of other ranks leave terms without
  those that cancel them.

Between two products with relu or gelu, a third to a half of the terms is not cancelled but cut:
negative before the activation, 0 behind it.

Plug-ins draw integers of a small range (`left_operand`, `right_operand`), exact in any order if
(inner extent) x (largest left) x (largest right) <= 2^(bits of the significand). None is 0. The
left operand is positive, and so is the right one's first column, and with it that of every partial
sum, so one that is lost, or a wrong factor, shows at any size.

Where no integers are exact, operands are normally distributed. The bound of the error is derived,
element by element, from that: the K terms of a sum have random signs.

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

u is the unit roundoff of the dtype concerned. Only the value of the reference is computed in fp64;
the terms of the bound, none of them negative, are in fp32, and it is widened by what they can lose.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

import torch

from hpcbench.kinds.primitive.plan.demands import GELU_INPUT, SIGNIFICAND_BITS, Sizes
from hpcbench.operations.data import DTYPES, Mismatch, mismatch

_UNIT = 2.0**-11
"""Unit of terms that cancel before gelu: that of `GELU_INPUT` in fp16; all is exact in fp32."""
_CUT = -32.0
"""A number that gelu makes 0 in every dtype: erf(x / sqrt 2) is -1 in fp64 from -8.3 on."""
_GELU_INPUT = GELU_INPUT["bf16"]  # any number would do for dtypes that are not exact


@dataclass(frozen=True, slots=True)
class Terms:
    """How the terms of a sum cancel. All are int64 in one dimension.

    Attributes:
        source: for each term the term of its group whose numbers it has.
        factor: for each term the factor of its right number.
        signals: (signals of a part, parts) the terms that do not cancel.
        cut: the terms that are negative before an activation."""

    source: torch.Tensor
    factor: torch.Tensor
    signals: torch.Tensor
    cut: torch.Tensor


def cancelling_terms(
    extent: int, parts: int, count: int, seed: int, *, cut: float = 0.0,
) -> Terms:
    """Return how the terms of a sum cancel within each of its equal parts, but ``count`` signals.

    ``cut`` is the share of the others that an activation cuts."""
    generator = torch.Generator().manual_seed(seed)
    size = extent // parts
    source, factor = torch.arange(extent), torch.ones(extent, dtype=torch.int64)
    kept, removed = [], []
    for part in range(parts):
        order = part * size + torch.randperm(size, generator=generator)
        rest = order[count:]
        n_cut = int(cut * len(rest))
        if cut and (len(rest) - n_cut) % 2:
            n_cut += 1
        kept.append(order[:count])
        removed.append(rest[:n_cut])
        _group(rest[n_cut:], source, factor)
    return Terms(source, factor, torch.stack(kept, dim=1), torch.cat(removed))


def _group(members: torch.Tensor, source: torch.Tensor, factor: torch.Tensor) -> None:
    """Put terms together in pairs, after three where their number is odd."""
    if len(members) % 2:
        first, second, third = members[:3]
        source[second] = source[third] = first
        factor[third] = -2
        members = members[3:]
    leaders, partners = members[::2], members[1::2]
    source[partners] = leaders
    factor[partners] = -1


def left_factors(
    shape: tuple[int, ...], terms: Terms, sizes: Sizes, dtype: str, seed: int,
) -> torch.Tensor:
    """Return a global left operand (..., terms) on the CPU."""
    generator = torch.Generator().manual_seed(seed)
    drawn = _nonzero(shape, sizes.cancelling, generator)[..., terms.source]
    for own in terms.signals:
        sized = _positive(len(own), math.prod(shape[:-1]), sizes.left, generator)
        drawn[..., own] = sized.T.reshape(*shape[:-1], len(own)).to(torch.int8)
    return drawn.to(DTYPES[dtype])


def right_factors(
    shape: tuple[int, int], terms: Terms, sizes: Sizes, dtype: str, seed: int, first: int = 0,
) -> torch.Tensor:
    """Return a global right operand (terms, columns) on the CPU.

    ``first`` is the number of the first part: signals of operands of neighbouring numbers differ.
    """
    drawn = _right(shape, terms, (sizes.cancelling, sizes.right), seed, first)
    return _in_own_columns(drawn, terms, sizes.stride).to(DTYPES[dtype])


def mlp_factors(
    k: int, n: int, parts: int, sizes: Sizes, dtype: str, activation: str,
) -> tuple[Terms, torch.Tensor, torch.Tensor]:
    """Return the terms of the first sums, W1 (k, n) and W2 (n, k).

    Columns of W1 whose results cancel behind the activation are equal. With gelu the signals before
    it are `GELU_INPUT` and its double, where relu and gelu differ."""
    first = cancelling_terms(k, 1, sizes.signals, seed=4)
    second = cancelling_terms(n, parts, 1, seed=5, cut=0.5)
    up = _right((k, n), first, (sizes.cancelling, sizes.right), seed=2)
    up = up[:, second.source].to(torch.float32)
    own = first.signals.reshape(-1)
    if activation == "gelu":
        up.mul_(_UNIT)
        up[own] = GELU_INPUT.get(dtype, _GELU_INPUT)
        up[own[:, None], second.cut] = _CUT
    else:
        up[own] = up[own].abs()
        up[own[:, None], second.cut] *= -1
    down = _right((n, k), second, (sizes.inner, sizes.right), seed=3,
                  least=sizes.right // 2 if not sizes.exact else 0)
    down = _in_own_columns(down, second, sizes.stride)
    return first, up.to(DTYPES[dtype]), down.to(DTYPES[dtype])


def _in_own_columns(drawn: torch.Tensor, terms: Terms, stride: int) -> torch.Tensor:
    """Make a part's signals 0 but in every ``stride``-th column; no column is without some."""
    if stride == 1:
        return drawn
    columns = torch.arange(drawn.shape[1])
    for own in terms.signals:
        parts = torch.arange(len(own))[:, None]
        drawn[own] *= (columns + parts) % stride == 0
    return drawn


def _right(
    shape: tuple[int, int], terms: Terms, sizes: tuple[int, int], seed: int, first: int = 0,
    least: int = 0,
) -> torch.Tensor:
    """Return right numbers, int16, of ``sizes``: terms that cancel, and signals above ``least``."""
    cancelling, largest = sizes
    generator = torch.Generator().manual_seed(seed + (first << 16))
    drawn = _nonzero(shape, cancelling, generator)[terms.source].to(torch.int16)
    drawn *= terms.factor[:, None].to(torch.int16)
    generator.manual_seed(seed)  # as that of the operands which these have to differ from
    signs = _nonzero((shape[1],), 1, generator).to(torch.int16)
    for own in terms.signals:
        sized = least + _positive(len(own), shape[1], largest - least, generator, first)
        drawn[own] = sized.to(torch.int16) * signs
    return drawn


def _nonzero(shape: tuple[int, ...], size: int, generator: torch.Generator) -> torch.Tensor:
    """Return int8 from -size to size but 0."""
    drawn = torch.randint(1, 2 * size + 1, shape, generator=generator, dtype=torch.int8)
    return drawn - size - (drawn <= size).to(torch.int8)


def _positive(
    parts: int, count: int, size: int, generator: torch.Generator, first: int = 0,
) -> torch.Tensor:
    """Return int64 (parts, count) from 1 to size; neighbours differ wherever size is above 1.

    So do parts of which the numbers are less than ``size`` apart, in each of their elements."""
    numbers = first + torch.arange(parts)
    draws = torch.randint(0, size, (parts // size + 2, count), generator=generator)
    few = min(size, count)
    draws[:, :few] = (draws[:, :1] + torch.arange(few)) % size
    return 1 + (draws[numbers // size - first // size] + numbers[:, None]) % size


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
    product's results are up to K t s, and its product with another operand is up to N K t s^2."""
    limit = 2 ** SIGNIFICAND_BITS[dtype]
    return next((size for size in _MAGNITUDES
                 if math.prod(inner) * max(size, 2) * size ** len(inner) <= limit), 0)


def left_operand(shape: tuple[int, ...], dtype: str, size: int, seed: int) -> torch.Tensor:
    """Return a global operand on the CPU: integers from 1, of `magnitude` size; 0: normal numbers.

    They go to 2 where size is 1, for a matrix of ones would hide an exchange of its parts."""
    generator = torch.Generator().manual_seed(seed)
    if size == 0:
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    drawn = torch.randint(1, max(size, 2) + 1, shape, generator=generator, dtype=torch.int8)
    return drawn.to(DTYPES[dtype])


def right_operand(
    shape: tuple[int, ...], dtype: str, size: int, seed: int, parts: int = 1,
) -> torch.Tensor:
    """Return a global operand on the CPU: integers from -size to size but 0, or normal numbers.

    The first column of each of ``parts`` equal blocks of columns is positive (so blocks of one
    column and size 1 are all alike)."""
    generator = torch.Generator().manual_seed(seed)
    if size == 0:
        return torch.randn(shape, generator=generator).to(DTYPES[dtype])
    signed = _nonzero(shape, size, generator)
    signed[..., ::shape[-1] // parts].abs_()
    return signed.to(DTYPES[dtype])


def unit_roundoff(dtype: str) -> float:
    """Return half the distance from 1 to the next number of the dtype."""
    return math.ldexp(1.0, -SIGNIFICAND_BITS[dtype])


def accumulated_roundoff(dtype: str) -> float:
    """Return the unit roundoff that torch computes in: fp32's for shorter dtypes."""
    return unit_roundoff("fp64" if dtype == "fp64" else "fp32")


@dataclass(frozen=True, slots=True)
class Expected:
    """In the shape of the output, on the CPU: ``value`` in fp64, and ``bound`` in fp32.

    ``bound`` is None where the output must be exact."""

    value: torch.Tensor
    bound: torch.Tensor | None = None

    def flat(self) -> Expected:
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
    the left operands may already be off."""
    if exact:
        return Expected(_exact_sum(parts))
    inner = parts[0][0].shape[-1]
    value, absolute = _sums(parts)
    rounding, passed = _norms(parts, errors or [None] * len(parts))
    # the reference's own sums are rounded, too
    roundoff = accumulated_roundoff(dtype) + unit_roundoff("fp64")
    rounding *= LAMBDA**2 * math.sqrt(inner) * roundoff
    passed *= LAMBDA
    absolute += passed + torch.finfo(DTYPES[dtype]).smallest_normal
    bound = absolute.mul_(len(parts) * unit_roundoff(dtype)).add_(rounding).add_(passed)
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
    norms = passed = torch.zeros(())
    for (left, right), error in zip(parts, errors, strict=True):
        largest, squares = left.float().abs(), right.float().square()
        if error is not None:
            largest += error
            passed = passed + error.square() @ squares
        norms = norms + (largest.square_() @ squares).sqrt_()
    return norms, passed.sqrt()


def activated(before: Expected, name: str, dtype: str) -> Expected:
    """Return the activation of a result in fp64, and how far one in the dtype may be off.

    relu is exact, and brings no two numbers further apart. gelu brings them 1.129 times as far
    apart at most. It is computed in fp32 (fp64 for fp64), where 1 + erf is off by a few units
    however small it is: 4 u |x|. Its result is rounded to the dtype: u |gelu|, or, where that is
    too small for a normal number, half the smallest number."""
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
    """Return the mismatch, or None if every element is within its bound; NaN is never right."""
    if got.shape != expected.value.shape:
        return Mismatch(got.numel(), expected.value.numel(), 0, f"shape {tuple(got.shape)}",
                        f"shape {tuple(expected.value.shape)}")
    ours, flat = got.reshape(-1), expected.flat()

    def right(piece: slice) -> torch.Tensor:
        off = (ours[piece].cpu().double() - flat.value[piece]).abs()
        return off <= (0.0 if flat.bound is None else flat.bound[piece])

    return mismatch(ours, flat.value, right)

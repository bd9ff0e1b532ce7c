"""Integer operands of any extent with exact results: almost all terms of each sum cancel.

The terms of a sum lie on the ranks in equal parts. In each part the terms are put together by a
random draw: pairs with the same left factor and opposite right ones, or three with right factors w,
w and -2 w. A few terms are in no group: the signals. So a part's sum is that of its signals'
products, whatever the extent (`plan.exactness`), and:

- No element of an operand is 0, nor is one of a result. Signals on the left are positive, those on
  the right have one sign a column. A factor on a result, or a lost part, changes every element.
  Of more ranks than a dtype can count, each has signals in some columns only (`Sizes.stride`), 0 in
  the others. A lost part then changes its own columns.
- A wrong factor, a tile that is lost or taken twice, and parts of other ranks leave terms without
  those that cancel them.

Between two products with relu or gelu, a third to a half of the terms is not cancelled but cut:
negative before the activation, 0 behind it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from hpcbench.kinds.primitive.plan.exactness import GELU_INPUT, Sizes
from hpcbench.operations.dtypes import DTYPES

_UNIT = 2.0**-11
"""Of what cancels before gelu: that of `GELU_INPUT` in fp16, so that all is exact in fp32."""
_CUT = -32.0
"""What gelu makes 0 of in every dtype: erf(x / sqrt 2) is -1 in fp64 from -8.3 on."""
_GELU_INPUT = GELU_INPUT["bf16"]  # of dtypes that are not exact any number would do


@dataclass(frozen=True, slots=True)
class Terms:
    """How the terms of a sum cancel. All are int64 in one dimension.

    Attributes:
        source: for each term the term of its group whose numbers it has.
        factor: for each term what its right number is multiplied by.
        signals: (signals of a part, parts) the terms that do not cancel.
        cut: the terms that are negative before an activation.
    """

    source: torch.Tensor
    factor: torch.Tensor
    signals: torch.Tensor
    cut: torch.Tensor


def cancelling_terms(extent: int, parts: int, signals: int, seed: int) -> Terms:
    """Return how the terms of a sum cancel within each of its equal parts, but so many signals."""
    return _terms(extent, parts, signals, seed, cut=0.0)


def activated_terms(extent: int, parts: int, seed: int) -> Terms:
    """Return the same behind an activation, which cuts some of them, with one signal a part."""
    return _terms(extent, parts, 1, seed, cut=0.5)


def _terms(extent: int, parts: int, count: int, seed: int, cut: float) -> Terms:
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
    it are `GELU_INPUT` and its double, where relu and gelu differ.
    """
    first, second = cancelling_terms(k, 1, sizes.signals, seed=4), activated_terms(n, parts, seed=5)
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
    """Return right numbers, int16: ``sizes`` of what cancels and of signals, these from ``least``
    + 1 on."""
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

    So do parts of which the numbers are less than ``size`` apart, in each of their elements.
    """
    numbers = first + torch.arange(parts)
    draws = torch.randint(0, size, (parts // size + 2, count), generator=generator)
    few = min(size, count)
    draws[:, :few] = (draws[:, :1] + torch.arange(few)) % size
    return 1 + (draws[numbers // size - first // size] + numbers[:, None]) % size

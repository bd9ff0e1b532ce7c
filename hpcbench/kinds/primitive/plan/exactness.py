"""How large integer operands may be, so that the dtype holds every result exactly at any size.

Of the terms of a long sum most cancel in groups, and the few others (signals) make the result. So
no result grows with the extent that is summed over. What must fit is, in units of the least term:

- a result, and any sum of ranks' results: into the significand of the dtype,
- all terms of one product together, in any order: into that of fp32, in which torch adds.

Where even ones of all ranks do not fit, only every ``stride``-th rank has signals in a column of
the result, and each rank in every ``stride``-th column.
"""

from __future__ import annotations

from dataclasses import dataclass
from types import MappingProxyType

SIGNIFICAND_BITS = MappingProxyType({"fp64": 53, "fp32": 24, "fp16": 11, "bf16": 8})
"""IEEE 754 binary64, 32, 16 and bfloat16, with the hidden bit."""
GELU_INPUT = MappingProxyType({"bf16": 203 / 2**8, "fp16": 1627 / 2**11})
"""gelu of this number is rounded to 5/8 in the dtype, and gelu of twice as much to 12/8: both are
further than 2 % of a step from where rounding would change. Found by trying all numbers."""
_BUDGET = 2**22
"""In units of the least term: a quarter of what fp32 holds."""
_SIGNALS = (8, 4, 2, 1)
_CANCELLING = (32, 16, 8, 4, 2, 1)
_GELU_STEPS = 12
"""The largest result of `GELU_INPUT`, in eighths."""
_MANY = 8
"""Signals of a part that are preferred to larger numbers: a short sum then has no other terms."""
_MOST = 64
"""Signals of a part at most: each is drawn by itself, and more of them show no other faults."""
_LOUD = 128
"""Of a signal behind gelu in fp32 and fp64: its results are then far above what sums may lose."""


@dataclass(frozen=True, slots=True)
class Sizes:
    """The largest magnitudes of integer operands, and how many make the result.

    Attributes:
        signals: how many terms of each part do not cancel.
        left: of signals of the left operand, all positive.
        right: of signals of the right operand; of an MLP of W2, and of W1 with relu.
        cancelling: of all other terms, of an MLP of the first product.
        inner: of those of an MLP's second product.
        stride: each part of a sum has signals in every ``stride``-th column only.
        exact: whether results are exact, too; otherwise their errors are bounded.
    """

    signals: int
    left: int
    right: int
    cancelling: int
    inner: int = 0
    stride: int = 1
    exact: bool = True


def product_sizes(dtype: str, extent: int, parts: int) -> Sizes | None:
    """Return the sizes for sums over ``extent`` terms, ``parts`` ranks together; None: there are
    none."""
    cancelling = _largest_cancelling(2 * extent)
    stride = _stride(dtype, parts, _left(1))
    size, count = _signals(extent // parts, _limit(dtype) // -(-parts // stride), power=1)
    if not size or not cancelling:
        return None
    return Sizes(count, _left(size), size, cancelling, stride=stride)


def _stride(dtype: str, parts: int, least: int) -> int:
    """Return between how many columns a part has signals once; ``least``: the least of its sums."""
    together = _limit(dtype) // least
    return -(-parts // together) if together else 1


def _signals(terms: int, limit: int, power: int) -> tuple[int, int]:
    """Return size and number of signals of so many terms; (0, 0) if there are none.

    ``limit`` is the largest result of a part, ``power`` how many right operands make it. Ones alone
    would hide an exchange of ranks' parts, so they are taken only where there is nothing else.
    """
    found = {size: count for size in _SIGNALS
             if (count := _count(terms, limit // (_left(size) * size**power)))}
    size = next((size for size, count in found.items() if count >= min(terms, _MANY) and size > 1),
                2 if 2 in found else max(found, default=0))
    return size, found.get(size, 0)


def _count(terms: int, most: int) -> int:
    """Return how many signals there may be: all terms, or two or more are left to cancel."""
    count = min(terms, most, _MOST)
    return max(count - 1, 0) if terms - count == 1 else count


def _limit(dtype: str) -> int:
    return min(1 << SIGNIFICAND_BITS.get(dtype, 0), _BUDGET)


def mlp_sizes(dtype: str, k: int, n: int, parts: int, activation: str) -> Sizes | None:
    """Return the sizes for act(X W1) W2 with W1 (k, n), n divided into ``parts``; or None."""
    if activation == "gelu":
        return _gelu_sizes(dtype, k, n, parts)
    outer = _largest_cancelling(2 * k)
    stride = _stride(dtype, parts, _left(1))
    size, count = _signals(
        k, min(_limit(dtype) // -(-parts // stride), _BUDGET // n), power=2)
    inner = _largest(n * count * _left(size) * size)
    if not size or not outer or not inner:
        return None
    return Sizes(count, _left(size), size, outer, inner, stride)


def _gelu_sizes(dtype: str, k: int, n: int, parts: int) -> Sizes | None:
    """Return sizes for gelu: exact in short dtypes, where its results are few eighths."""
    outer, inner = _largest_cancelling(2 * k), _largest(n * _GELU_STEPS)
    if k == 2 or not outer or not inner:
        return None
    if dtype not in GELU_INPUT:
        return Sizes(1, 2, _LOUD, outer, 1, exact=False)
    stride = _stride(dtype, parts, _GELU_STEPS)
    size = next(size for size in _SIGNALS
                if -(-parts // stride) * _GELU_STEPS * size <= _limit(dtype))
    return Sizes(1, 2, size, outer, inner, stride)


def _left(size: int) -> int:
    """Return 2 where the size is 1: operands of ones would hide an exchange of their parts."""
    return max(size, 2)


def _largest_cancelling(terms: int) -> int:
    """Return the largest size of both factors of so many terms, 0 if there is none."""
    return next((size for size in _CANCELLING if terms * size**2 <= _BUDGET), 0)


def _largest(terms: int) -> int:
    """Return the largest size of one factor of so many units, 0 if there is none."""
    return next((size for size in _CANCELLING if terms * size <= _BUDGET), 0)

"""How far a strategy's loss, gradients and weights may be from the reference, and why.

Rounding errors of a sum of K products of random signs grow as sqrt(K) u (Higham and Mary, A New
Approach to Probabilistic Rounding Error Analysis, SIAM J. Sci. Comput. 41, 2019), relative to the
norm of the result. A gradient passes one product after the other, D of them, forward and back.

- fp32: their errors add up to at most D sqrt(K) u, K the longest sum of a step.
- bf16, fp16: products accumulate in fp32, and each rounds its operands and its result once in u of
  the dtype. Errors of D independent roundings add up to sqrt(D) u. A worst case of D u would be
  1 and more for deep models, and allow anything.

`_MARGIN` is Higham and Mary's lambda: a bound with 4 fails for one sum in ten thousand at most, and
what is compared is a norm over very many. That the margin is not too wide is tested: strategies
whose gradients are scaled or not exchanged are found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcbench.plan.workload import Training
from hpcbench.workloads.training.strategies.base import Exchange

UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
"""Unit roundoff: half the distance from 1 to the next number."""
_MARGIN = 4.0
_BLOCK_PRODUCTS = 6
"""One after the other in a block: q k and v, scores, values, output, up, down."""
UPDATE_ROUNDINGS = 16
"""Of one element in an optimizer's step: AdamW's has 14 operations, none of which cancels."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How large the norm of a difference may be: ``relative`` x norm + ``floor`` x sqrt(n)."""

    relative: float
    floor: float = 0.0


def arithmetic_bound(spec: Training) -> float:
    """Return the relative error that the arithmetic of a step may have."""
    depth = 2 * (_BLOCK_PRODUCTS * spec.layers + 1)
    if spec.dtype == "fp32":
        longest = max(spec.hidden, spec.inner, spec.vocab, spec.tokens)
        return _MARGIN * depth * math.sqrt(longest) * UNIT["fp32"]
    return _MARGIN * math.sqrt(depth) * UNIT[spec.dtype]


def gradient_bound(spec: Training, exchange: Exchange) -> Bound:
    """Return what gradients may differ by: arithmetic, and roundings in the exchange's dtype.

    Each of dp gradients is rounded when it is cast, and a sum of them at most dp - 1 times.
    """
    return Bound(arithmetic_bound(spec) + spec.dp * exchange.unit, spec.dp * exchange.floor)

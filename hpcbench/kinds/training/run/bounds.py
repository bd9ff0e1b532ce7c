"""How far a strategy's loss, gradients and weights may be from the reference, and why.

Rounding errors of a sum of K products of random signs grow as sqrt(K) u, relative to the norm of
the result. Source: Higham and Mary, A New Approach to Probabilistic Rounding Error Analysis, SIAM
J. Sci. Comput. 41 (2019). A gradient passes D products, one after the other, forward and back.

- fp32: their errors add up to at most D sqrt(K) u, K the longest sum of a step.
- bf16, fp16: products accumulate in fp32, and each rounds its operands and its result once in u of
  the dtype. Errors of D independent roundings add up to sqrt(D) u. A worst case of D u would be
  1 and more for deep models, and allow anything.

A ResNet adds two things. A batch norm subtracts the mean of what has errors relative to mean and
deviation together: with biases of b they grow by sqrt(1 + b^2) each time. A ReLU passes what is
above 0: an error of e deviations that takes a value across 0 adds or removes a gradient. Values are
normal about b (`NARROW_BIAS`), so a share of E|e| x (their density at 0) of each ReLU's elements
changes. The norm lacks the root of the sum of all shares.

`_MARGIN` is Higham and Mary's lambda: a bound with 4 fails for one sum in ten thousand at most, and
the check compares norms over very many. Tests show that the margin is not too wide: strategies
whose gradients are scaled or not exchanged fail.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from hpcbench.kinds.training.plan.resnet import halved
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.models.resnet import NARROW_BIAS
from hpcbench.kinds.training.run.strategies.base import Exchange

UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}
"""Unit roundoff: half the distance from 1 to the next number."""
_MARGIN = 4.0
_BLOCK_PRODUCTS = 6
"""One after the other in a block: q k and v, scores, values, output, up, down."""
_BLOCK_NORMED = 6
"""One after the other in a block of a ResNet: three convolutions, each with a norm."""
_STEM_AND_HEAD = 3
_SHIFT = math.sqrt(1 + NARROW_BIAS**2)
_AT_ZERO = math.exp(-NARROW_BIAS**2 / 2) / math.sqrt(2 * math.pi)
_MEAN_ERROR = math.sqrt(2 / math.pi)
UPDATE_ROUNDINGS = 16
"""Of one element in an optimizer's step: AdamW's has 14 operations, none of which cancels."""
LEAST = 0.01
"""Of a parameter's share of the norm of all gradients; those of keys' biases alone are smaller.
They are exactly 0, and what is computed is rounding errors (`plan.gradients.bias_scale`)."""


@dataclass(frozen=True, slots=True)
class Bound:
    """How large the norm of a difference may be: ``relative`` x norm + ``floor`` x sqrt(n)."""

    relative: float
    floor: float = 0.0


def arithmetic_bound(spec: Training) -> float:
    """Return the relative error that the arithmetic of a step may have."""
    if spec.of_images:
        return _MARGIN * _image_error(spec, 2 * _images_depth(spec))
    depth = 2 * (_BLOCK_PRODUCTS * spec.layers + 1)
    if spec.dtype == "fp32":
        longest = max(spec.hidden, spec.inner, spec.vocab, spec.tokens or 0)
        return _MARGIN * depth * math.sqrt(longest) * UNIT["fp32"]
    return _MARGIN * math.sqrt(depth) * UNIT[spec.dtype]


def gradient_bound(spec: Training, exchange: Exchange) -> Bound:
    """Return what gradients may differ by: arithmetic, and roundings in the exchange's dtype.

    Each of dp gradients is rounded when it is cast, and a sum of them at most dp - 1 times.
    """
    relative = arithmetic_bound(spec) + (_flipped(spec) if spec.of_images else 0)
    return Bound(relative + spec.dp * exchange.unit, spec.dp * exchange.floor)


def _images_depth(spec: Training) -> int:
    return _BLOCK_NORMED * spec.layers + _STEM_AND_HEAD


def _image_error(spec: Training, depth: int) -> float:
    """Return the relative error behind so many operations of a ResNet, without a margin."""
    if spec.dtype == "fp32":
        longest = spec.global_batch * halved(spec.image_size)**2  # of a weight's gradient
        return _SHIFT * depth * math.sqrt(longest) * UNIT["fp32"]
    return _SHIFT * math.sqrt(depth) * UNIT[spec.dtype]


def _flipped(spec: Training) -> float:
    """Return the share of a gradient that other ReLUs may pass; few elements, so its square has
    the margin."""
    relus = 3 * spec.layers + 1
    error = _MEAN_ERROR * _image_error(spec, _images_depth(spec))
    return math.sqrt(_MARGIN * relus * _AT_ZERO * error)

"""What layouts of one training are compared by, and how large rounding errors of a bias may be."""

from __future__ import annotations

import math

WEIGHTS, GRADIENTS, UPDATES = "weights", "gradients", "updates"
"""The kinds of values that are compared: at the start, of the first step, and what it changes."""
_BIAS, _WEIGHT = ".bias", ".weight"


def weight_beside(name: str) -> str | None:
    """Return the name of the weight whose outputs the bias of this name is added to, or None."""
    return name.removesuffix(_BIAS) + _WEIGHT if name.endswith(_BIAS) else None


def bias_scale(norm: float, elements: int, of_bias: int) -> float:
    """Return the norm that rounding errors of a bias's gradient are relative to, at least.

    That gradient is the sum of all tokens' errors d. Its weight's is the sum of d x, where inputs
    x are normed, so each of its columns is as large as the sum of d that does not cancel. The sum
    of a key's bias cancels to 0: softmax does not see what all keys have in common. Rounding errors
    of d do not cancel. Over 6 shapes in bf16 they were 0.8 to 3.9 units of this.

    ``norm`` and ``elements`` are those of the weight's gradient. A norm's weight is no larger than
    its bias, and says nothing of it: the result is 0.
    """
    return norm * math.sqrt(of_bias / elements) if elements > of_bias else 0.0

"""Tails of Student's t, exact also for two degrees of freedom and for tiny chances.

They are the regularized incomplete beta function (Abramowitz and Stegun, 26.5.27), here by Lentz's
evaluation of its continued fraction (26.5.8).
"""

from __future__ import annotations

import math
from functools import lru_cache

_MOST_TERMS, _ENOUGH, _TINY = 500, 1e-14, 1e-300


def t_tail(t: float, degrees: float) -> float:
    """Return P(T > t) for Student's t with so many degrees of freedom, 1 at least."""
    half = 0.5 * _beta_share(degrees / 2, 0.5, degrees / (degrees + t * t))
    return half if t >= 0 else 1 - half


@lru_cache(maxsize=1024)
def t_quantile(tail: float, degrees: float) -> float:
    """Return the t that is exceeded with a chance of ``tail``, above 0 and at most 1/2."""
    low, high = 0.0, 1.0
    while t_tail(high, degrees) > tail:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if t_tail(middle, degrees) > tail else (low, middle)
    return high


def _beta_share(a: float, b: float, x: float) -> float:
    """Return I_x(a, b), the regularized incomplete beta function, 0 <= x <= 1."""
    if x <= 0 or x >= 1:
        return float(x >= 1)
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
                     + a * math.log(x) + b * math.log1p(-x))
    if x < (a + 1) / (a + b + 2):  # where the fraction converges fast
        return front * _fraction(a, b, x) / a
    return 1 - front * _fraction(b, a, 1 - x) / b


def _fraction(a: float, b: float, x: float) -> float:
    c, d = 1.0, 1 / _not_zero(1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, _MOST_TERMS):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        change = 1.0
        for term in (even, odd):
            d = 1 / _not_zero(1 + term * d)
            c = _not_zero(1 + term / c)
            change = c * d
            value *= change
        if abs(change - 1) < _ENOUGH:
            break
    return value


def _not_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY

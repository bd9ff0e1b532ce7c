"""Synthetic series whose true median is known, for the tests of ``hpcbench.statistics``."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]


def log_normal(rng: np.random.Generator, cases: int, n: int) -> Series:
    return np.exp(0.3 * rng.standard_normal((cases, n)))


def exponential_tail(rng: np.random.Generator, cases: int, n: int) -> Series:
    """A fixed cost and exponential stalls; shifted so that the median is 1."""
    return 1 + 0.2 * (rng.exponential(size=(cases, n)) - math.log(2))


def bimodal(rng: np.random.Generator, cases: int, n: int) -> Series:
    """70 % near 1, 30 % near 1.3; shifted so that the median is 1: Phi(0.5660) = 0.5 / 0.7."""
    slow = rng.random((cases, n)) < 0.3
    return 1 + 0.3 * slow + 0.02 * (rng.standard_normal((cases, n)) - 0.5659488)


def autoregressive(rng: np.random.Generator, cases: int, n: int,
                   correlation: float = 0.8) -> Series:
    """Exponential of a Gaussian AR(1) process, in its stationary state from the start."""
    noise = rng.standard_normal((cases, n))
    state = noise[:, 0]
    series = [state]
    for step in range(1, n):
        state = correlation * state + math.sqrt(1 - correlation ** 2) * noise[:, step]
        series.append(state)
    return np.exp(0.1 * np.stack(series, axis=1))


TRUE_MEDIAN = 1.0
KINDS: dict[str, Callable[[np.random.Generator, int, int], Series]] = {
    "log_normal": log_normal, "bimodal": bimodal,
    "exponential_tail": exponential_tail, "autoregressive": autoregressive,
}
INDEPENDENT_KINDS = ("log_normal", "bimodal", "exponential_tail")


def series_of(kind: str, cases: int, n: int) -> Series:
    """Return ``cases`` series of ``n`` values, the same ones on every call."""
    seed = sorted(KINDS).index(kind)
    return KINDS[kind](np.random.default_rng([seed, n]), cases, n)

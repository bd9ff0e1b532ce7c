"""Synthetic series whose true median is known, for tests of ``hpcbench.statistics``.

``benchmarks/coverage.py`` takes them, too. Each function returns (cases, n) values; the median of
what they are drawn from is `TRUE_MEDIAN`. A series of several passes is that many series, one
after the other: between passes a machine does something else. A drift goes on through all of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import numpy.typing as npt

Series = npt.NDArray[np.float64]
Generator = np.random.Generator
TRUE_MEDIAN = 1.0
_UPPER_SHARE = 0.3
_MEDIAN_OF_LOWER = 0.5659488
"""Phi(0.566) = 0.5 / 0.7: where the median of two modes lies in the lower one, of 70 %."""


def log_normal(rng: Generator, cases: int, n: int) -> Series:
    return np.exp(0.3 * rng.standard_normal((cases, n)))


def exponential_tail(rng: Generator, cases: int, n: int) -> Series:
    """A fixed cost and exponential stalls; shifted so that the median is 1."""
    return 1 + 0.2 * (rng.exponential(size=(cases, n)) - math.log(2))


def bimodal(rng: Generator, cases: int, n: int, apart: float = 0.3) -> Series:
    """70 % near 1, 30 % near 1.3, each value in a mode of its own."""
    return _two_modes(rng, rng.random((cases, n)) < _UPPER_SHARE, apart)


def hops(rng: Generator, cases: int, n: int, dwell: float) -> Series:
    """Two modes as far apart as ticks of 4 ms are; ``dwell`` values in the lower one on average.

    A Markov chain in its stationary state from the start.
    """
    up = 1 / dwell
    down = up * (1 - _UPPER_SHARE) / _UPPER_SHARE
    upper = rng.random((cases, n)) < _UPPER_SHARE
    chance = rng.random((cases, n))
    for step in range(1, n):
        before = upper[:, step - 1]
        upper[:, step] = np.where(before, chance[:, step] >= down, chance[:, step] < up)
    return _two_modes(rng, upper, 4.0)


def spikes(rng: Generator, cases: int, n: int) -> Series:
    """Log-normal values, of which 4 % take 2 to 20 times as long; equally many 1 / 2 to 1 / 20.

    The fast ones keep the median at 1; real ones are rarer and change nothing else.
    """
    logs = 0.1 * rng.standard_normal((cases, n))
    hit = rng.random((cases, n)) < 0.08
    return np.exp(logs + hit * rng.choice((-1.0, 1.0), (cases, n))
                  * rng.uniform(math.log(2), math.log(20), (cases, n)))


def autoregressive(rng: Generator, cases: int, n: int, correlation: float = 0.8) -> Series:
    """Exponential of a Gaussian AR(1) process, in its stationary state from the start."""
    state = rng.standard_normal((cases, n))
    for step in range(1, n):
        state[:, step] = correlation * state[:, step - 1] + math.sqrt(
            1 - correlation ** 2) * state[:, step]
    return np.exp(0.1 * state)


def drift(rng: Generator, cases: int, n: int) -> Series:
    """A rise by 20 % over the whole series; its median is that of all moments together."""
    return drift_level(n) + 0.05 * rng.standard_normal((cases, n))


def drift_level(n: int) -> Series:
    """Return the median of each moment of a drift."""
    return np.linspace(0.9, 1.1, n)


def _two_modes(rng: Generator, upper: npt.NDArray[np.bool_], apart: float) -> Series:
    noise = rng.standard_normal(upper.shape) - _MEDIAN_OF_LOWER
    return 1 + apart * upper + 0.02 * noise


KINDS: dict[str, Callable[[Generator, int, int], Series]] = {
    "log_normal": log_normal, "bimodal": bimodal, "exponential_tail": exponential_tail,
    "ticks": partial(bimodal, apart=4.0), "spikes": spikes,
    "autoregressive_3": partial(autoregressive, correlation=0.3),
    "autoregressive_6": partial(autoregressive, correlation=0.6),
    "autoregressive": autoregressive,
    "hops_20": partial(hops, dwell=20), "hops_60": partial(hops, dwell=60), "drift": drift,
}
INDEPENDENT_KINDS = ("log_normal", "bimodal", "exponential_tail", "ticks", "spikes")
AUTOREGRESSIVE_KINDS = ("autoregressive_3", "autoregressive_6", "autoregressive")
STATIONARY_KINDS = (*INDEPENDENT_KINDS, *AUTOREGRESSIVE_KINDS)
HARD_KINDS = ("hops_20", "hops_60", "drift")
"""Those that hold a state for tens of values, and one whose median moves."""


def series_of(kind: str, cases: int, n: int, passes: int = 1) -> Series:
    """Return ``cases`` series of ``n`` values in equal passes, the same ones on every call."""
    rng = np.random.default_rng([list(KINDS).index(kind), n, passes])
    if kind == "drift":
        return drift(rng, cases, n)
    return np.concatenate([KINDS[kind](rng, cases, length) for length in lengths(n, passes)], 1)


def lengths(n: int, passes: int) -> list[int]:
    """Return the lengths of passes of ``n`` values in all."""
    return [len(part) for part in np.array_split(np.arange(n), passes)]

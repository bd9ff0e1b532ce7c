"""Amdahl's law (AFIPS 1967), t(n) = t(1) (s + (1 - s) / n), and Gunther's universal scalability law
(Springer 2007), x(n) = n x(1) / (1 + sigma (n - 1) + kappa n (n - 1)), fitted by least squares of
relative residuals of their linear forms t = a + b / n and n / x = a + b n + c n (n - 1),
coefficients not below 0."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.statistics.order import Interval, t_quantile

SPARE = 2
"""A law is fitted where there are so many points more than it has parameters."""
AMDAHL, UNIVERSAL = "Amdahl's law", "universal scalability law"
PARAMETERS: Mapping[str, int] = {AMDAHL: 2, UNIVERSAL: 3}
NAMED: Mapping[str, str] = {AMDAHL: AMDAHL, UNIVERSAL: f"the {UNIVERSAL}"}
"""The names within a sentence."""
_TAIL = 0.025
Array = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Law:
    """A fitted law. ``parameters``: ``s``, or ``sigma`` and ``kappa``, with 95 % intervals, none at
    a bound. ``residuals``: measured over fitted time, less 1; ``fitted``: seconds, or work per
    second."""

    name: str
    parameters: Mapping[str, Interval]
    residuals: tuple[float, ...]
    fitted: tuple[float, ...]
    least_ranks: int
    most_ranks: int

    @property
    def worst(self) -> float:
        return max(map(abs, self.residuals))


@dataclass(frozen=True, slots=True)
class _Fit:
    """Coefficients that are not below 0, and their covariance; that of one at 0 is 0."""

    values: Array
    covariance: Array
    fitted: Array
    degrees: int


def why_not(name: str, points: int) -> str:
    """Return why a law cannot be fitted to so many world sizes; nothing if it can."""
    needed = PARAMETERS[name] + SPARE
    if points >= needed:
        return ""
    return f"{NAMED[name]} needs {needed} world sizes, not {points}"


def amdahl(ranks: Sequence[int], times_s: Sequence[float]) -> Law:
    """Return Amdahl's law for times of the same work. Raises ValueError for too few points."""
    n, times = _checked(AMDAHL, ranks, times_s)
    fit = _least_squares(np.stack([np.ones_like(n), 1 / n], axis=1), times)
    part, divided = fit.values
    whole = float(part + divided)
    slope = np.array([divided, -part]) / whole**2
    return _law(AMDAHL, ranks, times, fit.fitted, fit.fitted,
                {"s": _parameter(part / whole, slope, fit, 0, most=1.0)})


def universal(ranks: Sequence[int], rates: Sequence[float]) -> Law:
    """Return the universal scalability law for work per second. Raises ValueError for too few
    points."""
    n, known = _checked(UNIVERSAL, ranks, rates)
    fit = _least_squares(np.stack([np.ones_like(n), n, n * (n - 1)], axis=1), n / known)
    divided, shared, exchanged = fit.values
    one = float(divided + shared)
    slope = np.array([-shared, divided, 0.0]) / one**2
    slope_of_exchange = np.array([-exchanged, -exchanged, one]) / one**2
    return _law(UNIVERSAL, ranks, n / known, fit.fitted, n / fit.fitted, {
        "sigma": _parameter(shared / one, slope, fit, 1, most=1.0),
        "kappa": _parameter(exchanged / one, slope_of_exchange, fit, 2)})


def _checked(name: str, ranks: Sequence[int], values: Sequence[float]) -> tuple[Array, Array]:
    if reason := why_not(name, len(set(ranks))):
        raise ValueError(reason)
    return np.array(ranks, dtype=np.float64), np.array(values, dtype=np.float64)


def _least_squares(columns: Array, values: Array) -> _Fit:
    """Return the fit with the least relative residuals. All choices of the (at most 3) columns are
    tried; one of the first two is among them, else one rank would take no time."""
    weighted, ones = columns / values[:, None], np.ones_like(values)
    best: tuple[float, tuple[int, ...], Array] | None = None
    for many in range(columns.shape[1], 0, -1):
        for chosen in combinations(range(columns.shape[1]), many):
            if chosen == (2,):
                continue
            part = weighted[:, chosen]
            found: Array = np.linalg.lstsq(part, ones, rcond=None)[0].astype(np.float64)
            error = float(((part @ found - ones) ** 2).sum())
            starts = found[[at < 2 for at in chosen]].sum() > 0
            if (found >= 0).all() and starts and (best is None or error < best[0]):
                best = error, chosen, found
    assert best is not None  # one column of numbers above 0 always has a coefficient above 0
    error, chosen, found = best
    values_of = np.zeros(columns.shape[1])
    values_of[list(chosen)] = found
    degrees = len(values) - len(chosen)
    part = weighted[:, chosen]
    covariance = np.zeros((columns.shape[1],) * 2)
    covariance[np.ix_(chosen, chosen)] = np.linalg.pinv(part.T @ part) * error / degrees
    return _Fit(values_of, covariance, columns @ values_of, degrees)


def _parameter(
    value: float, slope: Array, fit: _Fit, at: int, most: float = float("inf"),
) -> Interval:
    """Return a quotient of coefficients with its interval, to first order in their errors."""
    if not fit.values[at] > 0 or value >= most:
        return Interval(float(value))
    half = t_quantile(_TAIL, fit.degrees) * float(np.sqrt(slope @ fit.covariance @ slope))
    return Interval(float(value), max(float(value) - half, 0.0), min(float(value) + half, most))


def _law(
    name: str, ranks: Sequence[int], measured: Array, fitted_times: Array, fitted: Array,
    parameters: Mapping[str, Interval],
) -> Law:
    return Law(name, parameters, tuple((measured / fitted_times - 1).tolist()),
               tuple(fitted.tolist()), min(ranks), max(ranks))

"""Tests for few passes, launches or steps, with known error rates: multiple testing,
shifts of two samples, differences over passes and launches (`shifts_of`, `shifts_in_launches`), the
slowest of equal ranks (`find_slowest`)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import lru_cache, partial

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.statistics.distributions import distributions
from hpcbench.statistics.interval import chance_of_one_side
from hpcbench.statistics.order import Interval, Values, median, medians, t_quantile, t_tail


def holm(chances: Sequence[float], rate: float) -> list[bool]:
    """Return which tests hold so that any false one does in at most a share ``rate`` of reports,
    whatever their dependence (Holm, Scandinavian Journal of Statistics 6, 1979)."""
    holds = [False] * len(chances)
    in_order = sorted(range(len(chances)), key=chances.__getitem__)
    for place, at in enumerate(in_order):
        if chances[at] * (len(chances) - place) > rate:
            break
        holds[at] = True
    return holds


def benjamini_hochberg(chances: Sequence[float]) -> list[float]:
    """Return p-values adjusted for the false discovery rate (Benjamini and Hochberg, JRSS B 57,
    1995)."""
    adjusted = [0.0] * len(chances)
    least = 1.0
    in_order = sorted(range(len(chances)), key=chances.__getitem__)
    for place in range(len(chances), 0, -1):
        at = in_order[place - 1]
        least = min(least, chances[at] * len(chances) / place)
        adjusted[at] = least
    return adjusted


def chosen(ways: int, chance: float) -> float:
    """Return the p-value of any way being faster, as those of the rivals of one of them are
    counted: all k (k - 1) ordered pairs, one-sided, are k / 2 two-sided p-values for each rival."""
    return min(1.0, ways / 2 * chance)


EXACT_UP_TO = 60
"""Values of a sample; larger ones have the normal distribution that ranks come close to."""


def shift_of(first: Values, second: Values, level: float = 0.95) -> tuple[Interval, float]:
    """Return the shift from ``first`` (n,) to ``second`` (m,) and its p-value: exact two-sided test
    of Wilcoxon, Mann and Whitney; median of all differences (Hodges and Lehmann) with the interval
    of shifts that the test does not refuse (Hollander, Wolfe and Chicken, 3rd edition, 4.1 to 4.3).
    """
    differences = np.sort(np.subtract.outer(second, first), axis=None)
    n, m, below = len(first), len(second), 0
    while 2 * _at_most(below, n, m) <= 1 - level:
        below += 1
    ends = (float(differences[below - 1]), float(differences[-below])) if below else ()
    return Interval(median(differences), *ends), _chance(differences, n, m)


def least_chance(n: int, m: int) -> float:
    return min(1.0, 2 / math.comb(n + m, n))


def _chance(differences: Values, n: int, m: int) -> float:
    """Return the two-sided p-value; a tie counts against a difference."""
    above = int((differences > 0).sum())
    ties = int((differences == 0).sum())
    nearer = min(above, n * m - above - ties) + ties  # as if ties were against a difference
    return min(1.0, 2 * _at_most(nearer, n, m))


def _at_most(count: int, n: int, m: int) -> float:
    if max(n, m) <= EXACT_UP_TO:
        return float(_distribution(min(n, m), max(n, m))[count])
    deviation = math.sqrt(n * m * (n + m + 1) / 12)
    return 0.5 * math.erfc(-(count + 0.5 - n * m / 2) / deviation / math.sqrt(2))


@lru_cache(maxsize=64)
def _distribution(n: int, m: int) -> npt.NDArray[np.float64]:
    """Return P(U <= u) for u = 0 to n m by Gaussian binomial coefficients; each factor (1 -
    x^(m+i)) / (1 - x^i) is a difference and a running sum."""
    counts = np.zeros(n * m + 1)
    counts[0] = 1.0
    for i in range(1, n + 1):
        shifted = m + i
        if shifted <= n * m:
            counts[shifted:] -= counts[:-shifted].copy()
        for start in range(i, n * m + 1):
            counts[start] += counts[start - i]
        counts /= counts.sum() if i == n else 1.0
    return np.minimum(np.cumsum(counts), 1.0)


MIN_PASSES, MIN_STEPS = 3, 5
"""Two passes leave two ranks one degree of freedom, with which only a difference of 800 times its
error passes a corrected test. The median of 5 steps ignores two that are disturbed."""
LEVEL = 0.99
"""Level of the interval of the difference."""
MOST_CORRELATION, OF_TWO_RANKS = 0.85, 0.9
"""Largest correlation of neighbouring passes assumed; of two ranks, whose tail is exact, the
second. Reports have 1 % false alarms where passes correlate by up to 0.9
(`benchmarks/dependent_passes.py`)."""
_UNLIKELY = 1e-4
"""A correlation is ruled out where one as low as the observed has a smaller chance."""
_STEPS = 20
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SlowestRank:
    """The rank that takes longest. ``apart_s``: mean over passes of the difference to the next,
    ``low_s`` to ``high_s`` its interval of `LEVEL`. ``chance``: p-value of any of equal ranks being
    ``least_s`` apart. ``correlation`` of neighbouring passes, as assumed."""

    row: int
    next_row: int
    apart_s: float
    low_s: float
    high_s: float
    chance: float
    correlation: float = 0.0


@dataclass(frozen=True, slots=True)
class Passes:
    """AR(1) passes: ``inflation`` is n times the variance of the mean over the variance that they
    show, ``degrees`` those of as many independent values (Satterthwaite 1946)."""

    inflation: float
    degrees: float


@lru_cache(maxsize=1024)
def correlated_passes(n: int, correlation: float) -> Passes:
    covariance = _covariance(n, correlation)
    seen = (np.eye(n) - 1 / n) @ covariance
    shown = float(np.trace(seen))
    return Passes(float(covariance.sum()) / n / (shown / (n - 1)),
                  shown ** 2 / float(np.trace(seen @ seen)))


def largest_correlation(residual_s: Times) -> float:
    """Return the largest correlation of neighbouring passes compatible with ``residual_s``
    (rank, pass), without means of ranks and of passes; at most `MOST_CORRELATION`."""
    ranks, n = residual_s.shape
    squares = float((residual_s ** 2).sum())
    if squares <= 0:
        return MOST_CORRELATION
    seen = float((residual_s[:, 1:] * residual_s[:, :-1]).sum()) / squares
    return _largest(seen, n, ranks - 1, (MOST_CORRELATION, _UNLIKELY))


def _largest(seen: float, n: int, rows: int, limits: tuple[float, float]) -> float:
    """Return the largest correlation that one as low as ``seen`` in so many independent rows does
    not rule out; ``limits``: the largest of all, and the chance below which one is ruled out."""
    tried = [limits[0] * step / _STEPS for step in range(_STEPS + 1)]
    low, high = 0, _STEPS
    while low < high:  # the first that is ruled out, or the last of all
        middle = (low + high) // 2
        ruled_out = _chance_of_less(seen, n, tried[middle], rows) < limits[1]
        low, high = (low, middle) if ruled_out else (middle + 1, high)
    return tried[low]


def _chance_of_less(seen: float, n: int, correlation: float, ranks: int) -> float:
    lag, centre = np.diag(np.full(n - 1, 0.5), 1), np.eye(n) - 1 / n
    return 1 - _chance_above_0(
        centre @ (lag + lag.T - seen * np.eye(n)) @ centre, n, correlation, ranks)


def tail_of_two(t: float, n: int, correlation: float) -> float:
    """Return P(T > t) of the mean of n passes over its error, exactly: Student's t has far too long
    tails."""
    if not math.isfinite(t) or t <= 0:
        return 0.0 if t > 0 else 0.5
    if not correlation:
        return t_tail(t, n - 1)
    centre = np.eye(n) - 1 / n
    return _chance_above_0(
        np.full((n, n), n ** -2.0) - t * t / (n * (n - 1)) * centre, n, correlation, 1) / 2


@lru_cache(maxsize=1024)
def _quantile_of_two(tail: float, n: int, correlation: float) -> float:
    low, high = 0.0, 1.0
    while tail_of_two(high, n, correlation) > tail:
        low, high = high, 2 * high
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if tail_of_two(middle, n, correlation) > tail else (low, middle)
    return high


def _chance_above_0(form: Times, n: int, correlation: float, ranks: int) -> float:
    """Return P(quadratic form > 0) of n correlated normal values of equal ranks: Imhof (Biometrika
    48, 1961), within 1e-8."""
    root, u = _root(n, correlation), _places()
    weights = np.linalg.eigvalsh(root.T @ form @ root)
    turned = np.outer(u, weights / np.abs(weights).max())
    angle = ranks / 2 * np.arctan(turned).sum(axis=1)
    damping = ranks / 4 * np.log1p(turned ** 2).sum(axis=1)
    values = np.sin(angle) * np.exp(-damping)
    step = math.log(u[1] / u[0])
    return 0.5 + float((values[1:] + values[:-1]).sum()) / 2 * step / math.pi


@lru_cache(maxsize=1024)
def _root(n: int, correlation: float) -> Times:
    return np.asarray(np.linalg.cholesky(_covariance(n, correlation)), dtype=np.float64)


@lru_cache(maxsize=1)
def _places() -> Times:
    """Return where Imhof's integrand is evaluated."""
    return np.geomspace(1e-9, 1e9, 1200, dtype=np.float64)


def _covariance(n: int, correlation: float) -> npt.NDArray[np.float64]:
    passes = np.arange(n)
    return np.asarray(float(correlation) ** np.abs(passes[:, None] - passes[None, :]))


def are_enough(passes: Sequence[int]) -> bool:
    return len(passes) >= MIN_PASSES and min(passes) >= MIN_STEPS


def pass_medians(times_s: Times, passes: Sequence[int]) -> Times | None:
    """Return the medians of times (rank, step) in each pass, (rank, pass), if they `are_enough`."""
    return medians_by_pass(times_s, passes) if are_enough(passes) else None


def medians_by_pass(times_s: Times, passes: Sequence[int]) -> Times:
    """Return the medians of times (rank, step) in each pass, (rank, pass); no pass is empty."""
    ends = np.cumsum(passes)
    return np.stack([medians(times_s[:, end - length:end])
                     for end, length in zip(ends, passes, strict=True)], axis=1)


def find_slowest(medians_s: Times, least_s: float) -> SlowestRank:
    """Return the rank that takes longest, from its medians (rank, pass). A pass is one observation:
    its steps share disturbances. Medians are compared as in a two-way layout (Scheffe, The Analysis
    of Variance, 4.2), the error is that of AR(1) passes with the largest correlation compatible
    with them: a rank that is slow in a part of them does not stand out, one whose own state lasts
    for all does. A rank stands out if it is apart from each other one, so from the next. Raises
    ValueError for fewer than two ranks or passes."""
    ranks, passes = medians_s.shape
    if min(ranks, passes) < 2:
        raise ValueError(f"{ranks} ranks and {passes} passes: both take two at least")
    row, next_row = (int(one) for one in np.argsort(-medians_s.mean(axis=1), kind="stable")[:2])
    residual_s = medians_s - medians_s.mean(axis=0)
    residual_s -= residual_s.mean(axis=1, keepdims=True)
    between = medians_s[row] - medians_s[next_row]
    variance = max(2 * float((residual_s ** 2).sum()) / ((ranks - 1) * (passes - 1)),
                   float(between.var(ddof=1)))
    correlation = largest_correlation(residual_s)
    mistaken = _UNLIKELY if correlation < MOST_CORRELATION else 0.0
    difference_s, deviation_s = float(between.mean()), float(np.sqrt(variance / passes))
    if ranks == 2:
        correlation = correlation if mistaken else OF_TWO_RANKS
        half_s = _quantile_of_two((1 - LEVEL) / 2, passes, correlation) * deviation_s
        tail = partial(tail_of_two, n=passes, correlation=correlation)
    else:
        known = correlated_passes(passes, correlation)
        deviation_s, degrees = deviation_s * math.sqrt(known.inflation), known.degrees * (ranks - 1)
        half_s = t_quantile((1 - LEVEL) / 2, degrees) * deviation_s
        tail = partial(t_tail, degrees=degrees)
    far = (difference_s - least_s) / deviation_s if deviation_s > 0 else (
        np.inf if difference_s > least_s else -np.inf)
    chance = ranks * tail(float(far)) + (mistaken if deviation_s > 0 else 0.0)
    return SlowestRank(row, next_row, difference_s, difference_s - half_s, difference_s + half_s,
                    min(1.0, max(0.0, chance)), correlation)


CHANCE_CORRELATION = 0.05
"""Share of reports of independent passes whose passes count as dependent."""
FALSE_CORRELATION = 1e-3
"""Share of reports in which the correlation of passes is larger than assumed, where one is seen: it
is one for all comparisons of a report."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The mean of ``n`` differences, of passes or ``of_launches``, with its 95 % interval, and its
    two-sided p-value."""

    interval: Interval
    chance: float
    n: int = 0
    of_launches: bool = False


DECIDING_LAUNCHES = 8
"""From so many on a launch is always the unit: all on one side, they decide a pair at 1 %."""
LAUNCHES_DIFFER = 0.05
"""Launches whose passes are alike are found to differ in this share of pairs, at most."""


_ROUNDING = 1e-9


def shifts_in_launches(
    rows: Sequence[Sequence[Values]], weights: Sequence[float] = (),
) -> list[Shift]:
    """Return the mean of each row of differences, which are those of the passes of each launch.

    ``weights``: as how many independent rows each counts where rows bear on one another, 1 if not
    given; of all pairs of k ways 2 / k each, since k - 1 of them determine the others.

    Passes are the unit, and the mean is of these launches, unless launches differ by more than
    their passes explain: then, and from `DECIDING_LAUNCHES` on, each launch is one number. A few
    differing launches so decide nothing, and alike ones decide no less than one
    (`benchmarks/noise.py`)."""
    weights = weights or [1.0] * len(rows)
    whole = [len(row) >= DECIDING_LAUNCHES or differs
             for row, differs in zip(rows, launches_differ(rows, weights), strict=True)]
    values = [np.array([part.mean() for part in row]) if is_whole else np.concatenate(row)
              for row, is_whole in zip(rows, whole, strict=True)]
    found: dict[int, Shift] = {}
    for of_launches in (False, True):
        places = [at for at, is_whole in enumerate(whole) if is_whole is of_launches]
        shifts = shifts_of([values[at] for at in places], [weights[at] for at in places],
                           independent=of_launches)
        found.update((at, replace(shift, n=values[at].size, of_launches=of_launches))
                     for at, shift in zip(places, shifts, strict=True))
    return [found[at] for at in range(len(rows))]


def launches_differ(
    rows: Sequence[Sequence[Values]], weights: Sequence[float] = (),
) -> list[bool]:
    """Return in which rows of differences launches differ by more than their passes explain: by an
    analysis of variance of the row, or of all rows (Fisher's sum of logarithms), as what lasts for
    a launch probably does in more than one row."""
    chances = [_chance_of_launches(row) for row in rows]
    several = [(weight, math.log(max(chance, 1e-300))) for weight, chance in zip(
        weights or [1.0] * len(rows), chances, strict=True) if chance is not None]
    if not several:
        return [False] * len(rows)
    together = distributions().chdtrc(
        2 * sum(weight for weight, _ in several),
        -2 * sum(weight * log for weight, log in several)) < LAUNCHES_DIFFER
    return [chance is not None and bool(together or chance < LAUNCHES_DIFFER)
            for chance in chances]


def _chance_of_launches(parts: Sequence[Values]) -> float | None:
    """Return the p-value of launches being alike; None of one, and of single passes."""
    if len(parts) < 2 or max(part.size for part in parts) < 2:
        return None
    every = np.concatenate(parts)
    if np.ptp(every) <= _ROUNDING * np.abs(every).max():
        return 1.0
    within = sum(float(part.var() * part.size) for part in parts)
    between = float(every.var() * every.size) - within
    degrees = len(parts) - 1, every.size - len(parts)
    if not within:
        return 0.0
    return float(distributions().fdtrc(
        *degrees, max(between, 0.0) / degrees[0] / (within / degrees[1])))


def shifts_of(
    rows: Sequence[Values], weights: Sequence[float] = (), *, independent: bool = False,
) -> list[Shift]:
    """Return the mean of each row of differences (pass,), against 0. None is empty.

    Both settings of a difference run in each pass, in an order drawn anew, so noise that follows
    time has either sign by chance (`plan.order.shuffled`). What follows a setting over passes shows
    in the rows of a report: where they correlate, passes count as an AR(1) process of the largest
    correlation that all rows of as many passes leave possible, unless they are ``independent``; the
    mean is as many errors away as `tail_of_two` says. A few passes of one mode look exact, whatever
    their distribution is: so a p-value is not below that of all passes being on one side (sign
    test; Conover, 3.4), except as far as the spread of the other rows bears it out."""
    found: dict[int, Shift] = {}
    for n in {row.size for row in rows}:
        places = [at for at, row in enumerate(rows) if row.size == n]
        counted = np.array([weights[at] if weights else 1.0 for at in places])
        found.update(zip(places, _shifts(np.stack([rows[at] for at in places]), counted,
                                         independent), strict=True))
    return [found[at] for at in range(len(rows))]


MOST_PASSES = 200
"""More passes are not requested."""


def pairs_wanted(shift: Interval, n: int, room: float, chance: float) -> int | None:
    """Return how many passes would probably narrow the 95 % interval of ``n`` differences to
    ``room`` on either side, and the p-value to ``chance``; None if over MOST_PASSES. The
    differences are taken as independent."""
    low, high = shift.ends
    deviation = (high - low) / 2 / t_quantile(0.025, n - 1) * math.sqrt(n)
    for k in range(n + 1, MOST_PASSES + 1):
        error = deviation / math.sqrt(k)
        if t_quantile(0.025, k - 1) * error <= room and chance >= max(
                2 * t_tail(abs(shift.value) / max(error, 1e-12), k - 1),
                chance_of_one_side(k, 0.0)):
            return k
    return None


def _shifts(rows: Times, weights: Values, independent: bool) -> Iterator[Shift]:
    n = rows.shape[1]
    if n == 1:
        yield from (Shift(Interval(float(mean)), 1.0) for mean in rows[:, 0])
        return
    largest, likely = (0.0, 0.0) if independent else _correlations(rows, weights)
    means, variances = rows.mean(axis=1), rows.var(axis=1, ddof=1)
    known, signs = correlated_passes(n, largest), chance_of_one_side(n, likely)
    whole, rest = float(variances @ weights), float(weights.sum()) - 1
    for mean, variance, weight in zip(
            means.tolist(), variances.tolist(), weights.tolist(), strict=True):
        own = 2 * tail_of_two(_far(mean, variance / n), n, largest)
        by_others = 1.0
        if rest > _ROUNDING:
            others = max(0.0, whole - weight * variance) / (rest + 1 - weight)
            by_others = 2 * t_tail(_far(mean, others / n * known.inflation), known.degrees * rest)
        half = _quantile_of_two(0.025, n, largest) * math.sqrt(variance / n)
        yield Shift(Interval(mean, mean - half, mean + half),
                    min(1.0, max(own, min(signs, by_others))))


def _far(mean: float, variance: float) -> float:
    return abs(mean) / math.sqrt(variance) if variance > 0 else (math.inf if mean else 0.0)


def _correlations(rows: Times, counted: Values) -> tuple[float, float]:
    """Return the largest correlation of neighbouring passes compatible with rows (row, pass), and
    the likely one; 0 unless any is significant. Rows count alike, or by their variance: a row that
    stays in one state shows nothing of how long states last."""
    n = rows.shape[1]
    rest = rows - rows.mean(axis=1, keepdims=True)
    squares, products = (rest ** 2).sum(axis=1), (rest[:, 1:] * rest[:, :-1]).sum(axis=1)
    vary, largest, likely = squares > 0, 0.0, 0.0
    if n < MIN_PASSES or not vary.any():
        return largest, likely
    squares, products, counted = squares[vary], products[vary], counted[vary]
    for size in (squares, np.ones(squares.size)):
        weights = size * counted
        seen = float((products / squares) @ weights / weights.sum())
        count = max(1, int(weights.sum() ** 2 / (weights @ size) + 1e-9))
        least, middle, most = (_largest(seen, n, count, (OF_TWO_RANKS, chance))
                               for chance in (1 - CHANCE_CORRELATION, 0.5, FALSE_CORRELATION))
        if least > 0:
            largest, likely = max(largest, most), max(likely, middle)
    return largest, likely

"""Steps in a series of a value a run: where, how large, and how unlikely without one.

Steps are found by energy statistics as by E-divisive (Matteson and James, JASA 109, 2014): a
segment is divided where the energy distance of its two parts is largest, if in at most `DIVIDED` of
permutations it is as large anywhere. A permutation supposes that runs do not depend on one another;
so a step has also to stand out of the noise that all steps leave, with a p-value of `LEVEL`: by
generalised least squares, with neighbouring runs correlated as far as residuals allow for. These
also say where it is: at a step, a series that is correlated jumps by more than its neighbours do.
`benchmarks/history.py` measures how often steps are found, and how often noise has one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.hypothesis_tests import correlated_passes
from hpcbench.statistics.interval import lag1_correlation, unbiased_correlation
from hpcbench.statistics.order import Interval, Values, median, t_quantile, t_tail

DIVIDED, LEVEL = 0.05, 0.01
"""Largest p-values of the two tests: the first is for where, the second for whether."""
SHORTEST = 3
"""Fewest runs of a segment."""
FEWEST = 2 * SHORTEST
PERMUTATIONS = 99
_GRID = 48
"""Values are rounded to so many of their own quantiles where there are more."""
_BATCH = 8_000
"""Values that are permuted at a time, so that their counts stay in a cache."""
_ERRORS = 0.75
"""Standard errors by which the correlation of residuals may be larger than it looks."""
_LASTING = 0.05 / 2
"""Largest p-value of a stay in a state, at each end of a series, that is none of two in turn."""
_LONGEST = 150
"""Inflations of longer segments are those of this length."""


@dataclass(frozen=True, slots=True)
class LevelStep:
    """A change of level at ``index``, the first value after it. ``change`` is relative, with its
    95 % interval, and ``chance`` the p-value of so large a step anywhere in the series."""

    index: int
    change: Interval
    chance: float


def steps(values: Values, seed: int = 0) -> list[LevelStep]:
    """Return the steps of positive values (run,) in order of time.

    Raises ValueError for values that are not finite or not above 0."""
    if not (np.isfinite(values).all() and (values > 0).all()):
        raise ValueError("values of a series are finite and above 0")
    logs = np.log(values)
    ends = sorted(_divided(logs, 0, np.random.default_rng(seed)))
    while ends:
        found = _judged(logs, ends)
        chances = [one.chance for one in found]
        if max(chances) <= LEVEL:
            return found
        del ends[int(np.argmax(chances))]
    return []


def _divided(logs: Values, start: int, random: np.random.Generator) -> list[int]:
    """Return where a segment, whose first value is number ``start``, and its parts are divided."""
    if logs.size < FEWEST:
        return []
    at, chance = energy_split(logs, random)
    if chance > DIVIDED:
        return []
    return [start + at, *_divided(logs[:at], start, random),
            *_divided(logs[at:], start + at, random)]


def energy_split(values: Values, random: np.random.Generator) -> tuple[int, float]:
    """Return the first value of the second part where values (n,) are divided best, and the share
    of permutations that can be divided as well; testing ends once `DIVIDED` can."""
    grid = np.unique(values)
    if grid.size > _GRID:
        grid = np.unique(np.quantile(values, (np.arange(_GRID) + 0.5) / _GRID))
    below = (values[:, None] <= (grid[1:] + grid[:-1]) / 2).astype(np.float32)
    gaps = np.diff(grid).astype(np.float32)
    if not gaps.size:
        return SHORTEST, 1.0
    energies = _energies(below[None], gaps)[0]
    at = int(energies.argmax())
    limit, beyond, tried = energies[at] * (1 - 1e-5), 0, 0
    while tried < PERMUTATIONS and beyond < DIVIDED * (PERMUTATIONS + 1):
        many = min(max(_BATCH // values.size, 1), PERMUTATIONS - tried)
        orders = random.permuted(np.tile(np.arange(values.size), (many, 1)), axis=1)
        beyond += int((_energies(below[orders], gaps).max(axis=1) >= limit).sum())
        tried += many
    return SHORTEST + at, (beyond + 1) / (tried + 1)


def _energies(
    below: npt.NDArray[np.float32], gaps: npt.NDArray[np.float32],
) -> npt.NDArray[np.float32]:
    """Return the energy distance of the parts, weighted by their lengths, for each place to divide.

    In one dimension it is twice the integral of the squared difference of the two distribution
    functions (Szekely and Rizzo, Journal of Statistical Planning and Inference 143, 2013).

    Args:
        below: (order, value, place): 1 where a value is below a place between two values.
        gaps: (place,): the distance of these two."""
    n = below.shape[1]
    counts = below.cumsum(axis=1)
    first = np.arange(SHORTEST, n - SHORTEST + 1, dtype=np.float32)[:, None]
    apart = counts[:, SHORTEST - 1:n - SHORTEST] - first / n * counts[:, -1:]
    weights = (2 * n / (first * (n - first)))[:, 0]
    return np.asarray((apart * apart) @ gaps * weights)


def _judged(logs: Values, ends: Sequence[int]) -> list[LevelStep]:
    """Return the likeliest steps, one between the neighbours of each of ``ends``, with sizes and
    p-values, by the noise that all of them leave."""
    correlation = likely_correlation(np.split(logs, ends))
    found: list[LevelStep] = []
    for until in [*ends[1:], logs.size]:
        start = found[-1].index if found else 0
        step = _likeliest_step(logs[start:until], correlation)
        found.append(replace(step, index=start + step.index,
                             chance=min(1.0, step.chance * (logs.size - FEWEST + 1))))
    return found


def _likeliest_step(logs: Values, correlation: float) -> LevelStep:
    """Return the step that leaves least of AR(1) values (n,), with the p-value of its place.

    Of each run counts what does not follow from the one before: of a step 1 where it is, and then
    ``stays`` of every run."""
    n, stays = logs.size, 1 - correlation
    first = math.sqrt(1 - correlation ** 2)
    fresh = np.append(first * logs[0], logs[1:] - correlation * logs[:-1])
    level = np.append(first, np.full(n - 1, stays))
    length = float(level @ level)
    fresh -= float(fresh @ level) / length * level
    places = np.arange(SHORTEST, n - SHORTEST + 1)
    later = n - 1 - places
    squares = 1 + stays ** 2 * later - (stays + stays ** 2 * later) ** 2 / length
    since = fresh[::-1].cumsum()[::-1]
    shifts = (fresh[places] + stays * since[places + 1]) / squares
    at = int((shifts ** 2 * squares).argmax())
    rest = max(float(fresh @ fresh - shifts[at] ** 2 * squares[at]), 0.0)
    error = math.sqrt(rest / (n - 3) / squares[at])
    return LevelStep(int(places[at]), *_tested(float(shifts[at]), error, n - 3))


def _tested(shift: float, error: float, degrees: float) -> tuple[Interval, float]:
    """Return a relative change, of a shift of logarithms, and its p-value."""
    half = t_quantile(0.025, degrees) * error
    return Interval(*(math.expm1(end) for end in (shift, shift - half, shift + half))), (
        2 * t_tail(abs(shift) / error, degrees) if error > 0 else 0.0)


def likely_correlation(parts: Sequence[Values]) -> float:
    """Return the correlation of neighbouring runs to allow for, from what levels leave."""
    rest = np.concatenate([part - part.mean() for part in parts])
    lengths = [part.size for part in parts]
    n = rest.size
    seen = lag1_correlation(rest, lengths)
    if seen is None:
        return 0.0
    likely = unbiased_correlation(seen, n / len(parts)) + _ERRORS / math.sqrt(n)
    return min(max(likely, 0.0), 0.95)


def drift(values: Values, at: Values) -> tuple[Interval, float]:
    """Return the relative change of positive values (run,) along a line through their logarithms
    from the first to the last ascending time ``at``, with its 95 % interval and its p-value,
    allowing for correlated runs. Raises ValueError for fewer than `FEWEST`."""
    if values.size < FEWEST:
        raise ValueError(f"{values.size} values have no drift; {FEWEST} at least")
    places = (at - at.mean()) / (at[-1] - at[0])
    logs = np.log(values)
    spread = float((places ** 2).sum())
    slope = float((places * logs).sum()) / spread
    rest = logs - logs.mean() - slope * places
    correlation = likely_correlation([rest])
    stretch = (1 + correlation) / (1 - correlation)
    degrees = max(values.size / stretch - 2, 1.0)
    error = math.sqrt(float((rest ** 2).sum()) / (values.size - 2) / spread * stretch)
    return _tested(slope, error, degrees)


def unexplained(values: Values, ends: Sequence[int], at: Values | None = None) -> float:
    """Return Schwarz's criterion of positive values by their levels between ``ends``, or by a line
    along times ``at``: the smaller, the better they explain the values."""
    logs = np.log(values)
    if at is None:
        rest = np.concatenate([part - part.mean() for part in np.split(logs, ends)])
        unknown = 2 * len(ends) + 1
    else:
        line = np.polynomial.Polynomial.fit(at, logs, 1)
        rest, unknown = logs - line(at), 2
    squares = max(float((rest ** 2).mean()), 1e-20)
    return values.size * math.log(squares) + unknown * math.log(values.size)


def two_states(values: Values, ends: Sequence[int]) -> npt.NDArray[np.bool_] | None:
    """Return which positive values are of the upper of two levels, if their going back and forth
    between these explains them better than steps at ``ends`` do, and how long the first and the
    last stay is, too; else None.

    By Schwarz's criterion of deviations with an exponential tail, in which a level counts once and
    a place where it changes twice. No deviation counts more than the levels are apart: else an
    outlier is a state."""
    logs = np.log(values)
    parts = np.split(logs, ends)
    middles = [median(part) for part in parts]
    gap = max(middles) - min(middles)
    is_upper = logs > min(middles) + gap / 2
    switches = int((is_upper[1:] != is_upper[:-1]).sum())
    if not gap or switches <= len(ends):
        return None
    of_steps = np.concatenate([part - middle for part, middle in zip(parts, middles, strict=True)])
    of_states = logs - np.where(is_upper, median(logs[is_upper]), median(logs[~is_upper]))
    without, within = (float(np.minimum(abs(rest), gap).mean()) for rest in (of_steps, of_states))
    more = 1 - len(ends) + 2 * (switches - len(ends))
    is_better = 2 * logs.size * math.log(without / max(within, 1e-10)) > more * math.log(logs.size)
    if not is_better or _hardly_left(is_upper, ends[-1]) or _hardly_left(
            is_upper[::-1], logs.size - ends[0]):
        return None
    return is_upper


def _hardly_left(is_upper: npt.NDArray[np.bool_], start: int) -> bool:
    """Return whether the state that prevails from ``start`` on is left more rarely than before, by
    Fisher's exact test: switching in turn then does not explain how long it stays."""
    now = 2 * int(is_upper[start:].sum()) >= is_upper.size - start
    was_left = [(is_upper[begin + 1:end + 1] != now)[is_upper[begin:end] == now]
                for begin, end in ((0, start), (start, is_upper.size - 1))]
    (before, left), (since, left_since) = ((part.size, int(part.sum())) for part in was_left)
    left += left_since
    as_rare = sum(math.comb(since, n) * math.comb(before, left - n) for n in range(left_since + 1))
    return as_rare <= _LASTING * math.comb(before + since, left)


def level_change(before: Values, after: Values) -> tuple[Interval, float]:
    """Return the relative change from positive values to later ones, two or more each, with its
    95 % interval and its p-value, allowing for correlated runs as `steps` does."""
    parts = np.log(before), np.log(after)
    correlation = round(likely_correlation(parts), 2)
    variance, degrees = 0.0, 0.0
    own = sum(float(((part - part.mean()) ** 2).sum()) for part in parts) / (
        before.size + after.size - 2)
    for size in (before.size, after.size):
        known = correlated_passes(min(size, _LONGEST), correlation)
        variance += own * known.inflation / size
        degrees += known.degrees * size / min(size, _LONGEST)
    return _tested(float(parts[1].mean() - parts[0].mean()), math.sqrt(variance), degrees)

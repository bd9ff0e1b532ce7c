"""Laws of isolated collectives: t(n, S) = a + alpha steps(n) + beta share(n) S, coefficients not
below 0 (Hockney 1994), with the steps and bytes of an algorithm (Thakur, Rabenseifner, Gropp 2005,
doi 10.1177/1094342005051521) for n ranks and a size S as nccl-tests counts it.

Algorithms change with the size: a law has up to three ranges of sizes, each with its own algorithm
and coefficients; and with the number of ranks, so few may have ranges of their own. Which, the
Bayesian information criterion (Schwarz 1978) decides. The error of a
prediction is that of predictions of what was left out: of each number of ranks but the fewest by
the law of all others. Of fewer ranks than were measured a law says nothing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.statistics.order import Interval, t_quantile

FEWEST_RANK_COUNTS = 3
"""A law over ranks needs as many numbers of them."""
MOST_RANGES = 3
FEWEST_POINTS = 4
"""A range of sizes has more points than its law has coefficients."""
OTHER_SIZE = 1.25
"""Sizes closer than this factor are one, as each number of ranks rounds it."""
COEFFICIENTS = 3
CUT = 2
"""What a cut adds to the parameters of a law: where it is, and another algorithm."""
NEAR = 4.0
"""Errors of a law are those at sizes within this factor."""
POOR_FIT, BEYOND_ERRORS = 0.1, 3.0
"""A law lacks fit where medians scatter by more than this, and so many times their errors."""
ALIKE = 6.0
"""Criteria that differ by less are no strong evidence for either algorithm (Kass, Raftery 1995,
doi 10.1080/01621459.1995.10476572)."""
LEAST_MISFIT = 0.03
"""Relative error of a law itself, which bounds how much more a certain median weighs."""
LEAST_ERROR = 0.01
"""Standard error of a median, relative, at least: medians of one run are no more certain."""
TAIL = 0.025
NOTHING_S = 1e-12
"""A prediction of nothing has a logarithm, too."""
Array = npt.NDArray[np.float64]


class Algorithm(NamedTuple):
    """How a collective sends: steps after one another, and bytes through a rank over S."""

    name: str
    steps: Callable[[float], float]
    share: Callable[[float], float]


def _rounds(ranks: float) -> float:
    return float(math.ceil(math.log2(ranks)))


def _others(ranks: float) -> float:
    return ranks - 1


def _parts(ranks: float) -> float:
    return (ranks - 1) / ranks


def _fold(ranks: float) -> float:
    """Return 1 where ranks beyond a power of two give theirs to others first, and get it last."""
    return float(math.log2(ranks) % 1 > 0)


def _halving_steps(ranks: float) -> float:
    return math.floor(math.log2(ranks)) + _fold(ranks)


def _halving_share(ranks: float, at_once: float = 0.0) -> float:
    """Return half the messages' time; ``at_once``: how many times those of later rounds share the
    link of the first (MPICH: findings/mpich_allreduce_of_three.sh)."""
    parts = _parts(2.0 ** math.floor(math.log2(ranks)))
    return parts + _fold(ranks) * (1 + at_once * parts)


def _concurrent(ranks: float, at: int = 0) -> float:
    """Return the messages' time of a binomial tree below a rank that sends to all its children at
    once, over one link."""
    apart = (2 ** level for level in range(at.bit_length(), int(ranks).bit_length()))
    children = [at + step for step in apart if at + step < ranks]
    return len(children) + max((_concurrent(ranks, child) for child in children), default=0.0)


def _once(_ranks: float) -> float:
    return 1.0


_RING, _LINEAR = Algorithm("ring", _others, _parts), Algorithm("linear", _others, _others)
_HALVING, _TREE = (Algorithm("halving", _rounds, _parts),
                   Algorithm("binomial tree", _rounds, _rounds))
_CHAIN, _PIPELINED = (Algorithm("pipelined chain", _others, _once),
                      Algorithm("pipelined tree", _rounds, _once))
_PARTS = (Algorithm("binomial tree", _rounds, _parts), Algorithm("linear", _others, _parts))
_DOUBLING = Algorithm("recursive doubling", _rounds, _rounds)
ALGORITHMS: Mapping[str, tuple[Algorithm, ...]] = MappingProxyType({
    "all_reduce": (_RING, Algorithm("halving and doubling", _rounds, _parts), _DOUBLING,
                   Algorithm("halving and doubling, folded", _halving_steps, _halving_share),
                   Algorithm("halving and doubling, folded at once", _halving_steps, partial(
                       _halving_share, at_once=0.5)),
                   _PIPELINED),
    "all_gather": (_RING, Algorithm("recursive doubling", _rounds, _parts)),
    "reduce_scatter": (_RING, _HALVING, _DOUBLING),
    "broadcast": (_TREE, Algorithm("scatter and ring", lambda n: _rounds(n) + n - 1, _parts),
                  Algorithm("concurrent tree", _rounds, _concurrent), _LINEAR, _CHAIN, _PIPELINED),
    "reduce": (_TREE, _HALVING, _LINEAR, _CHAIN, _PIPELINED),
    "gather": _PARTS,
    "scatter": _PARTS,
    "all_to_all": (Algorithm("pairwise", _others, _parts), Algorithm("Bruck", _rounds, _rounds)),
    "send_recv": (Algorithm("one message", _once, _once),),
    "barrier": (Algorithm("dissemination", _rounds, lambda _n: 0.0),),
})
"""Factors that do not depend on n (the 2 of all_reduce) are part of a law's coefficients."""


class Points(NamedTuple):
    """Medians of one series: numbers of ranks, sizes in bytes, times in s, relative errors; each
    (point,)."""

    ranks: Array
    sizes: Array
    times_s: Array
    errors: Array

    def where(self, kept: npt.NDArray[np.bool_]) -> Points:
        return Points(*(column[kept] for column in self))


class LawRange(NamedTuple):
    """An algorithm and its coefficients (s, s, s a byte) up to a number of ranks, below a size; and
    the ``others`` that describe the medians there about as well."""

    ranks: float
    below: float
    algorithm: Algorithm
    values: tuple[float, ...]
    others: tuple[LawRange, ...] = ()

    def time_s(self, ranks: float, size: float) -> float:
        fixed, step, byte = self.values
        return max(fixed + step * self.algorithm.steps(ranks) + (
            byte * self.algorithm.share(ranks) * size), NOTHING_S)


@dataclass(frozen=True)
class Fit:
    """The law of a series, fewer ranks and smaller sizes first. ``squares``: of the residuals of so
    many ``points``, whose errors have a mean square ``error``; ``parameters``: how many it has."""

    ranges: tuple[LawRange, ...]
    squares: float
    parameters: int
    points: int
    error: float

    @property
    def score(self) -> float:
        """Return its criterion: less is better."""
        return self.points * math.log(self.squares / self.points + self.error) + (
            self.parameters * math.log(self.points))

    def at(self, ranks: float, size: float) -> LawRange:
        return next((one for one in self.ranges if ranks <= one.ranks and size < one.below),
                    self.ranges[-1])

    def time_s(self, ranks: float, size: float) -> float:
        return self.at(ranks, size).time_s(ranks, size)

    def doubt(self, ranks: float, size: float) -> float:
        """Return how far from it the other algorithms are there, by the logarithm, at most."""
        own = self.at(ranks, size)
        return max((abs(math.log(other.time_s(ranks, size) / own.time_s(ranks, size)))
                    for other in own.others), default=0.0)

    def logs(self, points: Points) -> Array:
        """Return the logarithms of measured over fitted times."""
        fitted = [self.time_s(n, size) for n, size in zip(points.ranks, points.sizes, strict=True)]
        return np.asarray(np.log(points.times_s / np.array(fitted)))


def fit(collective: str, points: Points) -> Fit:
    """Return the law of a series with the least criterion. Raises KeyError of a collective without
    algorithms."""
    counts = np.unique(points.ranks)
    fits = [_of_sizes(collective, points)]
    for few in counts[:max(len(counts) - FEWEST_RANK_COUNTS, 0)]:
        low = points.where(points.ranks <= few)
        if len(low.sizes) >= FEWEST_POINTS - (few == counts[0]):  # one number has equal steps
            first = _of_sizes(collective, low)
            rest = _of_sizes(collective, points.where(points.ranks > few))
            fits.append(Fit(
                (*(one._replace(ranks=float(few)) for one in first.ranges), *rest.ranges),
                first.squares + rest.squares, first.parameters + rest.parameters + CUT,
                len(points.sizes), _mean_square(points.errors)))
    return min(fits, key=lambda one: one.score)


def _mean_square(errors: Array) -> float:
    return float((errors ** 2).mean())


def _of_sizes(collective: str, points: Points) -> Fit:
    """Return the law with the least criterion whose ranges are of sizes alone, cut one by one."""
    sizes = np.unique(points.sizes)
    apart = np.flatnonzero(sizes[1:] > OTHER_SIZE * sizes[:-1])
    between = [math.sqrt(sizes[at] * sizes[at + 1]) for at in apart]
    fits, cuts = [_with_cuts(collective, points, ())], list[float]()
    for _ in range(MOST_RANGES - 1):
        tried = [(found, edge) for edge in between if edge not in cuts and (
            found := _with_cuts(collective, points, sorted((*cuts, edge))))]
        if tried:
            best, edge = min(tried, key=lambda item: item[0].score)
            fits.append(best)
            cuts.append(edge)
    return min((one for one in fits if one), key=lambda one: one.score)


def _with_cuts(collective: str, points: Points, cuts: Sequence[float]) -> Fit | None:
    """Return the law with ranges that end at these sizes; None where one has too few points."""
    ranges, squares, parameters, begin = [], 0.0, CUT * len(cuts), 0.0
    for edge in (*cuts, math.inf):
        inside = points.where((points.sizes >= begin) & (points.sizes < edge))
        if cuts and (len(inside.sizes) < FEWEST_POINTS
                     or inside.sizes.max() <= OTHER_SIZE * inside.sizes.min()):
            return None  # of one size nothing says how time grows with it
        own, square = _of_range(collective, inside, edge)
        ranges.append(own)
        squares, begin = squares + square, edge
        parameters += sum(value > 0 for value in own.values)
    return Fit(tuple(ranges), squares, parameters, len(points.sizes), _mean_square(points.errors))


def _of_range(collective: str, points: Points, edge: float) -> tuple[LawRange, float]:
    """Return the law of a range by the algorithm with the least squares, and these."""
    (best, (values, least)), *others = sorted(
        ((one, _coefficients(one, points)) for one in ALGORITHMS[collective]),
        key=lambda item: item[1][1])
    count, error = len(points.sizes), _mean_square(points.errors)
    near = (least / count + error) * math.exp(ALIKE / count)
    return LawRange(math.inf, edge, best, values, tuple(
        LawRange(math.inf, edge, one, found) for one, (found, square) in others
        if square / count + error <= near)), least


def _coefficients(algorithm: Algorithm, points: Points) -> tuple[tuple[float, ...], float]:
    """Return those with the least squares of weighted relative residuals, and these, of a mean
    weight of 1."""
    from scipy.optimize import nnls

    counts, which = np.unique(points.ranks, return_inverse=True)
    steps, shares = (np.array([function(n) for n in counts])[which]
                     for function in (algorithm.steps, algorithm.share))
    columns = np.stack((np.ones(len(steps)), steps, shares * points.sizes),
                       axis=1) / points.times_s[:, None]
    scales = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
    weights = 1 / np.hypot(points.errors, LEAST_MISFIT)
    weights /= math.sqrt(float((weights ** 2).mean()))
    values = nnls(columns / scales * weights[:, None], weights)[0] / scales
    return tuple(map(float, values)), float((((columns @ values - 1) * weights) ** 2).sum())


def _near(sizes: Array, size: float) -> npt.NDArray[np.bool_]:
    """Return which points have a size within a factor of NEAR of one, or of the next."""
    inside = min(max(size, float(sizes.min())), float(sizes.max()))
    apart = np.abs(np.log2(np.maximum(sizes, 1)) - math.log2(max(inside, 1)))
    return np.asarray(apart <= max(math.log2(NEAR), float(apart.min())) + 1e-9)


class LawTime(NamedTuple):
    """A predicted time in s with its 95 % interval; ``log_error`` is the standard error of its
    logarithm with ``degrees`` of freedom. ``beyond``: of which measured range it is outside."""

    time: Interval
    log_error: float
    degrees: int
    beyond: tuple[str, ...]


class Refused(Exception):  # noqa: N818  (no error: the answer that the data do not carry)
    """Why there is no prediction, and what to measure."""


def why_not(what: str, measured: Sequence[int], ranks: int) -> str:
    """Return why a law over these numbers of ranks says nothing of so many; "" if it does."""
    if len(measured) < FEWEST_RANK_COUNTS:
        return (f"{what} was measured on {', '.join(map(str, measured))} ranks: a law over ranks "
                f"needs {FEWEST_RANK_COUNTS} numbers of them")
    if ranks < measured[0]:
        return (f"{what} was measured on {measured[0]} ranks and more, which says nothing of "
                f"{ranks}: measure it")
    return ""


def with_error(time_s: float, log_error: float, degrees: int) -> Interval:
    half = t_quantile(TAIL, degrees) * log_error
    return Interval(time_s, time_s * math.exp(-half), time_s * math.exp(half))


@dataclass(frozen=True)
class CallLaw:
    """The law of a series of a collective, and how well it predicts what it has not seen."""

    collective: str
    points: Points

    @cached_property
    def fit(self) -> Fit:
        return fit(self.collective, self.points)

    @cached_property
    def rank_counts(self) -> tuple[int, ...]:
        return tuple(int(n) for n in np.unique(self.points.ranks))

    @cached_property
    def left_out(self) -> Mapping[int, tuple[Array, Array]]:
        """Return number of ranks -> its sizes, and the logarithms of its measured times over those
        that the law of all other numbers predicts; without the fewest, as for `why_not`."""
        return {n: (own.sizes, fit(self.collective, self.points.where(
            self.points.ranks != n)).logs(own))
            for n in self.rank_counts[1:] for own in [self.points.where(self.points.ranks == n)]}

    def why_not(self, ranks: int, size: float) -> str:
        """Return why the law says nothing of so many ranks, or of a size; "" if it does."""
        low, high = self.sizes
        if high <= OTHER_SIZE * low and not low / OTHER_SIZE <= size <= high * OTHER_SIZE:
            return (f"{self.collective} was measured at {low:.0f} B alone, which says nothing of "
                    f"{size:.0f} B: measure a second size")
        counts = self.rank_counts
        return "" if ranks in counts else why_not(self.collective, counts, ranks)

    @property
    def sizes(self) -> tuple[float, float]:
        return float(self.points.sizes.min()), float(self.points.sizes.max())

    @cached_property
    def misfit(self) -> float | None:
        """Return the scatter of medians around the law, relative, if it is more than their own
        errors explain: it does not describe them."""
        scatter = float(np.sqrt((self.fit.logs(self.points) ** 2).mean()))
        own = float(np.sqrt((self.points.errors ** 2).mean()))
        return scatter if scatter > max(POOR_FIT, BEYOND_ERRORS * own) else None

    def predict(self, ranks: int, size: float) -> LawTime:
        """Return the time of a call. A number of ranks that was measured has the scatter of points
        of near sizes; others the error of what was left out, which grows with each doubling, and an
        interval with what other algorithms that fit about as well say. Errors grow by as much with
        each factor of NEAR beyond the measured sizes. Raises Refused where `why_not` says so."""
        if why := self.why_not(ranks, size):
            raise Refused(why)
        low, high = self.sizes
        far = max(low / max(size, 1.0), size / max(high, 1.0), 1.0)
        stretch, doubt = 1.0 + math.log(far, NEAR), 0.0
        if ranks in self.rank_counts:
            logs = self.fit.logs(self.points)[_near(self.points.sizes, size)]
            degrees = len(logs) - COEFFICIENTS
        else:
            logs = np.array([math.sqrt(float((errors[_near(sizes, size)] ** 2).mean()))
                             for sizes, errors in self.left_out.values()])
            degrees = len(logs)
            stretch += max(0.0, math.log2(ranks / self.rank_counts[-1]))
            doubt = self.fit.doubt(ranks, size) / t_quantile(TAIL, max(degrees, 1))
        error = math.hypot(float(np.sqrt((logs ** 2).mean())) * stretch, doubt, LEAST_ERROR)
        return LawTime(with_error(self.fit.time_s(ranks, size), error, max(degrees, 1)), error,
                       max(degrees, 1), tuple(self._beyond(ranks, size)))

    def _beyond(self, ranks: int, size: float) -> list[str]:
        low, high = self.sizes
        return ["ranks"] * (not self.rank_counts[0] <= ranks <= self.rank_counts[-1]) + [
            "size"] * (not low * 0.99 <= size <= high * 1.01)

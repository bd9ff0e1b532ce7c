"""Which links of a machine are slow, and what they have in common: the smallest set that explains.

Logarithms of rates are compared with those of links of the same distance. Every set of links that
has one cause (a rank, a host, a sender, a receiver, two hosts, one link, one way of it) is fitted
by least squares with a factor of its own. Of the sets whose links share that factor
(`EXPLAINS`), the one that explains most is taken, where equal links have one so slow by chance in
fewer than ``chance`` of the cases (Bonferroni over all sets). Its links are left out, and so on.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.student import t_quantile, t_tail

EXPLAINS = 0.8
"""A set is named where one factor explains this share of the squared excess of its links."""
LEAST_DROP = 0.05
"""A set is named from this drop on."""
MIN_RANKS = 4
MOST_FOUND = 5
LEVEL_TAIL = 0.005
"""On either side of the 99 % interval."""
Values = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]
RANK, HOST, SENDER, RECEIVER, LINK, ONE_WAY, HOSTS = (
    "rank", "host", "sender", "receiver", "link", "one way", "hosts")


@dataclass(frozen=True, slots=True)
class SlowSet:
    """Links that are slow together.

    Attributes:
        kind: what they have in common.
        who: the rank, host (by number), or the two of them.
        links: how many links they are.
        drop: the share of the rate that is lost; ``low`` to ``high`` is its 99 % interval.
        explained: the share of the squared excess of these links that one factor explains.
    """

    kind: str
    who: tuple[int, ...]
    links: int
    drop: float
    low: float
    high: float
    explained: float


@dataclass(frozen=True, slots=True)
class LinkLook:
    """The sets that are named, and the drop of one link from which on it would have been named.

    ``detectable`` is None where there are too few links to tell.
    """

    found: tuple[SlowSet, ...]
    detectable: float | None


class Cells(NamedTuple):
    """Links that were measured, one entry each: ends, hosts of the ends, distance, log of rate."""

    start: Whole
    end: Whole
    start_host: Whole
    end_host: Whole
    distance: Whole
    values: Values

    def only(self, kept: npt.NDArray[np.bool_]) -> Cells:
        """Return some of them."""
        return Cells(self.start[kept], self.end[kept], self.start_host[kept], self.end_host[kept],
                     self.distance[kept], self.values[kept])


class _Group(NamedTuple):
    """Sets of one kind: of each set its number, links, and how its fit is."""

    kind: str
    labels: tuple[Whole, ...]
    n_links: Values
    weight: Values
    sums: Values
    squares: Values


def cells_of(rates: Values, distances: Whole, hosts: Whole, *, each_way: bool) -> Cells:
    """Return the links of a matrix (from, to); NaN was not measured.

    Without ``each_way`` both values of a link are one measurement, so their mean is one entry.
    """
    values = np.log(np.where(rates > 0, rates, np.nan))
    if not each_way:
        values = np.triu((values + values.T) / 2, 1)
        values[np.tril_indices_from(values)] = np.nan
    start, end = np.nonzero(~np.isnan(values))
    return Cells(start, end, hosts[start], hosts[end], distances[start, end], values[start, end])


def slow_links(cells: Cells, chance: float, *, each_way: bool) -> LinkLook:
    """Return which sets of links are slow."""
    if len({*cells.start.tolist(), *cells.end.tolist()}) < MIN_RANKS:
        return LinkLook((), None)
    found: list[SlowSet] = []
    while True:
        best, left, detectable = _best(cells, chance, each_way=each_way)
        if best is None:
            return LinkLook(tuple(found), detectable)
        found.append(best)
        if len(found) == MOST_FOUND:
            return LinkLook(tuple(found), detectable)
        cells = cells.only(left)


def _best(
    cells: Cells, chance: float, *, each_way: bool,
) -> tuple[SlowSet | None, npt.NDArray[np.bool_], float | None]:
    """Return the set to name, the links outside of it, and the drop of a link that can be seen."""
    every = np.ones(cells.values.size, np.bool_)
    n_distances = len(set(cells.distance.tolist()))
    freedom = cells.values.size - n_distances - 1
    if freedom < 2:
        return None, every, None
    centred = cells.values - _means(cells.values, cells.distance)
    groups = [_fit(kind, labels, cells.distance, centred)
              for kind, labels in _labels(cells, each_way=each_way)]
    n_sets = sum(int((group.weight > 0).sum()) for group in groups)
    needed = t_quantile(chance / max(n_sets, 1), freedom)
    total = float((centred ** 2).sum())
    picked = _most(groups, total, freedom)
    error = math.sqrt(total / (freedom + 1))
    if picked is None:
        return None, every, _drop(-needed * error)
    group, number, explained = picked
    effect = float(group.sums[number] / group.weight[number])
    rest = max(total - float(group.sums[number] ** 2 / group.weight[number]), 1e-12 * total)
    spread = math.sqrt(rest / freedom / float(group.weight[number]))
    if (t_tail(-effect / spread, freedom) * n_sets > chance) or _drop(effect) < LEAST_DROP:
        return None, every, max(LEAST_DROP, _drop(-needed * error))
    inside = np.any([labels == number for labels in group.labels], axis=0)
    wide = t_quantile(LEVEL_TAIL, freedom) * spread
    seen = max(LEAST_DROP, _drop(-needed * math.sqrt(rest / freedom)))
    return SlowSet(group.kind, _who(group.kind, cells, inside, number), int(inside.sum()),
                   _drop(effect), _drop(effect + wide), _drop(effect - wide), explained
                   ), ~inside, seen


def _labels(cells: Cells, *, each_way: bool) -> Iterator[tuple[str, tuple[Whole, ...]]]:
    """Yield the sets of each kind: each link's number of a set, -1 where it is in none."""
    start, end, ours, theirs = cells.start, cells.end, cells.start_host, cells.end_host
    ranks, hosts = 1 + int(max(start.max(), end.max())), 1 + int(max(ours.max(), theirs.max()))
    apart = ours != theirs
    yield RANK, (start, end)
    if hosts < ranks:
        yield HOST, (np.where(apart, ours, -1), np.where(apart, theirs, -1))
        low, high = np.minimum(ours, theirs), np.maximum(ours, theirs)
        yield HOSTS, (np.where(apart, low * hosts + high, -1),)
    if each_way:
        yield SENDER, (start,)
        yield RECEIVER, (end,)
    yield LINK, (np.minimum(start, end) * ranks + np.maximum(start, end),)
    if each_way:
        yield ONE_WAY, (start * ranks + end,)


def _fit(kind: str, labels: tuple[Whole, ...], distance: Whole, centred: Values) -> _Group:
    """Return the sums of all sets of a kind; ``weight`` is 0 of sets without links outside.

    With means of distances removed, the least-squares factor of a set is its sum over its weight.
    """
    size, n_distances = 1 + max(int(one.max()) for one in labels), 1 + int(distance.max())
    sums, squares, counts = np.zeros(size), np.zeros(size), np.zeros((size, n_distances))
    for one in labels:
        inside = one >= 0
        numbers = one[inside]
        sums += np.bincount(numbers, centred[inside], size)
        squares += np.bincount(numbers, centred[inside] ** 2, size)
        counts += np.bincount(numbers * n_distances + distance[inside],
                              minlength=size * n_distances).reshape(size, n_distances)
    all_of = np.bincount(distance, minlength=n_distances)
    weight = (counts * (1 - counts / np.maximum(all_of, 1))).sum(axis=1)
    return _Group(kind, labels, counts.sum(axis=1), np.where(weight > 1e-9, weight, 0.0), sums,
                  squares)


def _most(
    groups: list[_Group], total: float, freedom: int,
) -> tuple[_Group, int, float] | None:
    """Return the set of one factor that explains most, and its share; None where there is none."""
    best: tuple[float, _Group, int, float] | None = None
    for group in groups:
        known = np.flatnonzero((group.weight > 0) & (group.sums < 0))
        if not known.size:
            continue
        sums, weight, n = group.sums[known], group.weight[known], group.n_links[known]
        gain = sums ** 2 / weight
        base = sums * (1 / n - 1 / weight)  # of the links outside, at the same distance
        excess = group.squares[known] - 2 * base * sums + n * base ** 2
        noise = n * np.maximum(total - gain, 0.0) / freedom
        explained = np.minimum(1.0, (n * (sums / weight) ** 2) / np.maximum(
            excess - noise, 1e-300))
        explained = np.where(excess > noise, explained, 0.0)
        gain = np.where(explained >= EXPLAINS, gain, 0.0)
        top = int(gain.argmax())
        if gain[top] > (best[0] * (1 + 1e-9) if best else 0.0):
            best = float(gain[top]), group, int(known[top]), float(explained[top])
    return best[1:] if best else None


def _means(values: Values, labels: Whole) -> Values:
    """Return of each entry the mean of all with its label."""
    counts = np.maximum(np.bincount(labels), 1)
    return np.asarray((np.bincount(labels, values) / counts)[labels])


def _who(
    kind: str, cells: Cells, inside: npt.NDArray[np.bool_], number: int,
) -> tuple[int, ...]:
    if kind in (RANK, HOST, SENDER, RECEIVER):
        return (number,)
    first = int(np.flatnonzero(inside)[0])
    ends = (cells.start_host, cells.end_host) if kind == HOSTS else (cells.start, cells.end)
    return tuple(int(one[first]) for one in ends)


def _drop(log_effect: float) -> float:
    return 1 - math.exp(log_effect)

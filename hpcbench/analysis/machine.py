"""Which links and ranks of a machine are slow, from cases that measured them one by one.

Links: logarithms of rates are compared with those of links of the same distance. Every set of links
that has one cause (a rank, a host, a sender, a receiver, two hosts, one link, one way of it) is
fitted by least squares with a factor of its own. The set that explains most is taken from those
whose links share that factor (`EXPLAINS`), where equal links have one so slow by chance in fewer
than ``chance`` of the cases (Bonferroni over all sets). Errors of links are not normal, so the set
has to be slow in nearly all passes, too (`_chance_in_passes`). Its links are left out, and so on.

Ranks: rates of each case are compared with the median rank; the mean over cases of the logarithms
counts. The slowest is tested against all that are quicker (a deleted residual, Student's t, and as
for links the passes of all cases), then the next one without it, up to a quarter of the ranks.
Bonferroni over ranks and over these steps, of which the first has half of the chance."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from hpcbench.answers.answer import (
    CLEAR,
    EXPLAINS,
    MOST_NAMED,
    MOST_UNSEEN,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    plain_table,
    with_command,
)
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import PairRates, RankRates
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.interval import inflation_of_sum
from hpcbench.statistics.order import Interval, t_quantile, t_tail
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart
from hpcbench.views.table import Column, Range, Row, Show, Table

LEAST_DROP = 0.05
"""A set of links, or a rank, is named from this drop on."""
MIN_RANKS = 4
MOST_SHARE = 4
"""At most one of so many ranks is named: with more, the usual rate is unknown."""
LEVEL_TAIL = 0.005
"""On either side of the 99 % interval."""
CHANCE = 0.01
"""The greatest share of reports of a machine with nothing slow that name anything."""
PER_DISTURBED = 4
"""One of so many passes may be disturbed, and hide that a link is slow."""
FEWEST_LINKS = 3
"""Signs of fewer links in few passes show nothing."""
SEEN_Z = 2.326
"""One-sided 1 %: a correlation of passes below it can be chance, and is taken as none."""
Values = npt.NDArray[np.float64]
Slow = TypeVar("Slow")
Whole = npt.NDArray[np.int64]
RANK, HOST, SENDER, RECEIVER, LINK, ONE_WAY, HOSTS = (
    "rank", "host", "sender", "receiver", "link", "one way", "hosts")
_NAMES = {RANK: "all links of rank {0}", HOST: "all links of {host}",
          SENDER: "what rank {0} sends", RECEIVER: "what rank {0} receives",
          LINK: "the link of ranks {0} and {1}", ONE_WAY: "the link from rank {0} to {1}",
          HOSTS: "the links between {host} and {other}"}


@dataclass(frozen=True, slots=True)
class SlowPart:
    """A slow part of the machine: ``drop`` is the lost share of the rate; its 99 % interval."""

    label: str
    what: str
    drop: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class Machine:
    """The record of the topic: the slow parts, and the number of checks."""

    parts: tuple[SlowPart, ...]
    checks: int
    answers: tuple[Answer, ...]


@dataclass(frozen=True, slots=True)
class SlowSet:
    """Links that are slow together.

    Attributes:
        kind: their common cause, such as a rank or a host.
        who: the rank, host (by number), or the two of them.
        links: the number of links.
        drop: the share of the rate that is lost, with its 99 % interval.
        explained: the share of the squared excess of these links that one factor explains."""

    kind: str
    who: tuple[int, ...]
    links: int
    drop: Interval
    explained: float


@dataclass(frozen=True, slots=True)
class SlowRank:
    """A rank that is slow by itself: ``drop`` is the lost share of the rate; 99 % interval."""

    rank: int
    drop: Interval


@dataclass(frozen=True, slots=True)
class Suspects(Generic[Slow]):
    """The named links or ranks, and the drop from which on another would have been named.

    ``detectable`` is None where there are too few for a test."""

    found: tuple[Slow, ...]
    detectable: float | None


class Cells(NamedTuple):
    """Links that were measured, one entry each: ends, hosts of the ends, distance, log of rate."""

    start: Whole
    end: Whole
    start_host: Whole
    end_host: Whole
    distance: Whole
    values: Values
    passes: Values
    """(pass, link): the same, of each pass."""

    def those(self, chosen: npt.NDArray[np.bool_]) -> Cells:
        return Cells(
            self.start[chosen], self.end[chosen], self.start_host[chosen], self.end_host[chosen],
            self.distance[chosen], self.values[chosen], self.passes[:, chosen])


class _Group(NamedTuple):
    """Sets of one kind: each link's set (``labels``), and by set the links and sums of the fit."""

    kind: str
    labels: tuple[Whole, ...]
    n_links: Values
    weight: Values
    sums: Values
    squares: Values


def cells_of(
    rates: Values, distances: Whole, hosts: Whole, passes: Sequence[Values], *, each_way: bool,
) -> Cells:
    """Return the links of a matrix (from, to), and of ``passes``; NaN was not measured.

    Without ``each_way`` both values of a link are one measurement, so their mean is one entry."""
    every = np.stack([rates, *passes])
    values = np.log(np.where(every > 0, every, np.nan))
    if not each_way:
        values = (values + values.transpose(0, 2, 1)) / 2
        low = np.tril_indices_from(rates)
        values[:, low[0], low[1]] = np.nan
    start, end = np.nonzero(~np.isnan(values).any(axis=0))
    return Cells(start, end, hosts[start], hosts[end], distances[start, end],
                 values[0, start, end], values[1:, start, end])


def slow_links(cells: Cells, chance: float, *, each_way: bool) -> Suspects[SlowSet]:
    if len({*cells.start.tolist(), *cells.end.tolist()}) < MIN_RANKS:
        return Suspects((), None)
    links: list[SlowSet] = []
    while True:
        best, left, detectable = _best(cells, chance, each_way=each_way)
        links += [best] if best else []
        if best is None or len(links) == MOST_NAMED:
            return Suspects(tuple(links), detectable)
        cells = cells.those(left)


def _best(
    cells: Cells, chance: float, *, each_way: bool,
) -> tuple[SlowSet | None, npt.NDArray[np.bool_], float | None]:
    """Return the set to name, the links outside of it, and the least detectable drop of a link."""
    every = np.ones(cells.values.size, np.bool_)
    n_distances = len(set(cells.distance.tolist()))
    freedom = cells.values.size - n_distances - 1
    if freedom < 2:
        return None, every, None
    centred = cells.values - _of_label(cells.values, cells.distance)
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
    standard_error = math.sqrt(rest / freedom / float(group.weight[number]))
    inside = np.any([labels == number for labels in group.labels], axis=0)
    if (t_tail(-effect / standard_error, freedom) * n_sets > chance) or _drop(effect) < LEAST_DROP:
        return None, every, max(LEAST_DROP, _drop(-needed * error))
    if _chance_in_passes(cells, group, number, inside) * n_sets > chance:
        return None, every, max(LEAST_DROP, _drop(1.01 * effect))
    wide = t_quantile(LEVEL_TAIL, freedom) * standard_error
    seen = max(LEAST_DROP, _drop(-needed * math.sqrt(rest / freedom)))
    return SlowSet(
        group.kind, _who(group.kind, cells, inside, number), int(inside.sum()),
        Interval(effect, effect - wide, effect + wide).map(_drop), explained), ~inside, seen


def _chance_in_passes(
    cells: Cells, group: _Group, number: int, inside: npt.NDArray[np.bool_],
) -> float:
    """Return the p-value of a set being as slow in nearly all passes, of links of any distribution.

    Equal sets are among the lowest q of their kind in a pass by chance; of several links, each is
    below the median of its distance in half of the passes (sign test). The smaller of both counts
    twice."""
    n = len(cells.passes)
    if not n:
        return 1.0
    centred = np.stack([one - _of_label(one, cells.distance) for one in cells.passes])
    signs = np.stack([np.sign(one - _of_label(one, cells.distance[~inside], np.median))
                      for one in cells.passes[:, ~inside]])
    correlation = _correlation(signs)
    shares = []
    for of_pass in centred:
        fit = _fit(group.kind, group.labels, cells.distance, of_pass)
        weighed = fit.weight > 0
        effects = fit.sums[weighed] / fit.weight[weighed]
        shares.append(float((effects <= fit.sums[number] / fit.weight[number]).mean()))
    lowest = chance_of_shares(shares, correlation)
    if inside.sum() < FEWEST_LINKS:
        return lowest
    below = sum(int((one[inside] < _of_label(one, cells.distance, np.median)[inside]).sum())
                for one in cells.passes)
    inflation = inflation_of_sum(n, correlation)
    alike = _at_least(math.floor(below / inflation), math.ceil(n * inside.sum() / inflation))
    return min(1.0, 2 * min(lowest, alike))


def chance_of_shares(shares: Sequence[float], correlation: float) -> float:
    """Return the p-value of uniform ``shares`` (pass,) being so low, but for as many disturbed
    passes as `PER_DISTURBED` allows: the least for each number of them, times these numbers."""
    tried, ordered = len(shares) // PER_DISTURBED + 1, sorted(shares, reverse=True)
    return min(1.0, tried * min(_chance_of_most(
        len(shares), left_out, ordered[left_out], correlation) for left_out in range(tried)))


def _chance_of_most(n: int, left_out: int, q: float, correlation: float) -> float:
    """Return the chance that at most so many of n passes are not among the lowest q: a chain of two
    states of this correlation, the chance of each number of them by the state of the last pass."""
    inside, outside = np.zeros(left_out + 2), np.zeros(left_out + 2)
    inside[0], outside[1] = q, 1 - q
    enter, stay = q * (1 - correlation), q + (1 - q) * correlation
    for _ in range(n - 1):
        inside, outside = (inside * stay + outside * enter, np.append(
            0.0, (inside * (1 - stay) + outside * (1 - enter))[:-1]))
    return float((inside + outside)[:left_out + 1].sum())


def _correlation(signs: Values) -> float:
    """Return the correlation of neighbouring passes by the signs of links (pass, link), 0 unless it
    is significant; signs correlate by 2 / pi asin(r) (Sheppard 1899)."""
    pairs = signs[1:] * signs[:-1]
    seen = float(pairs.mean()) if pairs.size else 0.0
    return math.sin(math.pi / 2 * seen) if seen * math.sqrt(pairs.size) >= SEEN_Z else 0.0


def _at_least(count: int, n: int) -> float:
    """Return P(X >= count) of X ~ Binomial(n, 1/2)."""
    return float(sum(math.comb(n, k) for k in range(count, n + 1)) / 2 ** n)


def _labels(cells: Cells, *, each_way: bool) -> Iterator[tuple[str, tuple[Whole, ...]]]:
    """Yield each kind, and the number of each link's sets of it, -1 where it is in none."""
    start, end, ours, theirs = cells.start, cells.end, cells.start_host, cells.end_host
    ranks, hosts = 1 + int(max(start.max(), end.max())), 1 + int(max(ours.max(), theirs.max()))
    across_hosts = ours != theirs
    yield RANK, (start, end)
    if hosts < ranks:
        yield HOST, (np.where(across_hosts, ours, -1), np.where(across_hosts, theirs, -1))
        low, high = np.minimum(ours, theirs), np.maximum(ours, theirs)
        yield HOSTS, (np.where(across_hosts, low * hosts + high, -1),)
    if each_way:
        yield SENDER, (start,)
        yield RECEIVER, (end,)
    yield LINK, (np.minimum(start, end) * ranks + np.maximum(start, end),)
    if each_way:
        yield ONE_WAY, (start * ranks + end,)


def _fit(kind: str, labels: tuple[Whole, ...], distance: Whole, centred: Values) -> _Group:
    """Return the sums of all sets of a kind; ``weight`` is 0 for sets without links outside.

    With means of distances removed, the least-squares factor of a set is its sum over its weight.
    """
    size, n_distances = 1 + max(int(one.max()) for one in labels), 1 + int(distance.max())
    sums, squares, counts = np.zeros(size), np.zeros(size), np.zeros((size, n_distances))
    for label in labels:
        inside = label >= 0
        numbers = label[inside]
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
    """Return the set with one factor that explains most, and its share; None without any."""
    best: tuple[float, _Group, int, float] | None = None
    for group in groups:
        slower = np.flatnonzero((group.weight > 0) & (group.sums < 0))
        if not slower.size:
            continue
        sums, weight, n = group.sums[slower], group.weight[slower], group.n_links[slower]
        gain = sums ** 2 / weight
        base = sums * (1 / n - 1 / weight)  # of the links outside, at the same distance
        excess = group.squares[slower] - 2 * base * sums + n * base ** 2
        noise = n * np.maximum(total - gain, 0.0) / freedom
        explained = np.minimum(1.0, (n * (sums / weight) ** 2) / np.maximum(
            excess - noise, 1e-300))
        explained = np.where(excess > noise, explained, 0.0)
        gain = np.where(explained >= EXPLAINS, gain, 0.0)
        top = int(gain.argmax())
        if gain[top] > (best[0] * (1 + 1e-9) if best else 0.0):
            best = float(gain[top]), group, int(slower[top]), float(explained[top])
    return best[1:] if best else None


def _of_label(
    values: Values, labels: Whole, middle: Callable[[Values], Any] = np.mean,
) -> Values:
    """Return for each entry the mean, or another middle, of all with its label."""
    centred = np.empty_like(values)
    for label in np.unique(labels):
        centred[labels == label] = middle(values[labels == label])
    return centred


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


def slow_ranks(rates: Values, passes: Values, chance: float) -> Suspects[SlowRank]:
    """Return the slow ranks of rates (case, rank), and of ``passes`` (pass of a case, rank)."""
    ranks = rates.shape[1]
    if ranks < MIN_RANKS:
        return Suspects((), None)
    logs = np.log(rates)
    values = (logs - np.median(logs, axis=1, keepdims=True)).mean(axis=0)
    order = np.argsort(values)
    steps = ranks // MOST_SHARE
    slow: tuple[SlowRank, ...] = ()
    detectable = 0.0
    for step in range(steps):
        rest = values[order[step + 1:]]
        usual, freedom = float(rest.mean()), rest.size - 1
        error = max(float(rest.std(ddof=1)), 1e-12) * math.sqrt(1 + 1 / rest.size)
        effect = float(values[order[step]]) - usual
        limit = chance / (2 if step == 0 else 2 * (steps - 1)) / (ranks - step)
        needed = _drop(-t_quantile(limit, freedom) * error)
        is_far = t_tail(-effect / error, freedom) <= limit and _drop(effect) >= LEAST_DROP
        if is_far and chance_of_rank(passes[:, order[step:]]) <= limit:
            wide = t_quantile(LEVEL_TAIL, freedom) * error
            effects = [(int(rank), float(values[rank]) - usual) for rank in order[:step + 1]]
            slow = tuple(SlowRank(rank, Interval(one, one - wide, one + wide).map(_drop))
                         for rank, one in effects)
        elif not slow or step == len(slow):
            detectable = max(LEAST_DROP, needed, _drop(1.01 * effect) if is_far else 0.0)
    return Suspects(tuple(one for one in slow if one.drop.value >= LEAST_DROP),
                detectable or LEAST_DROP)


def chance_of_rank(passes: Values) -> float:
    """Return the p-value of the first of ranks being so slow in nearly all passes (pass, rank)."""
    if not len(passes):
        return 1.0
    others = passes[:, 1:]
    shares = (passes <= passes[:, :1]).mean(axis=1)
    return chance_of_shares(shares.tolist(), _correlation(
        np.sign(others - np.median(others, axis=1, keepdims=True))))


def whole_hosts(found: Sequence[SlowRank], hosts: Sequence[str]) -> dict[str, list[SlowRank]]:
    """Return the hosts with several ranks, all of them slow, and these ranks."""
    return {host: same for host, same in grouped(
                (hosts[one.rank], one) for one in found).items()
            if host and len(same) > 1 and len(same) == list(hosts).count(host)}


LINKS, RANKS = "slow links", "slow ranks"


@dataclass(frozen=True, slots=True)
class _Checked:
    """The outcome for one matrix, or the rates of all ranks (``about`` RANKS); ``missing`` is why
    there is none, ``remedy`` what it takes."""

    label: str
    parts: tuple[SlowPart, ...] = ()
    detectable: float | None = None
    missing: str = ""
    remedy: str = ""
    about: str = LINKS


def machine(runs: Sequence[Run], options: TopicOptions) -> Machine:
    matrices = [(item, pairs) for run in runs for item in run.results.cases
                if item.status == "ok" for pairs in run.facts(
                    item, PairRates, partial(run.samples.samples, item.case.case_id))]
    rated = [(run, rates) for run in runs if (rates := _rates(run))]
    chance = CHANCE / max(1, len(matrices) + len(rated))
    checks = [*(_of_links(item, pairs, chance) for item, pairs in matrices),
             *(_of_ranks(run, rates, chance) for run, rates in rated)]
    parts = tuple(sorted((part for look in checks for part in look.parts),
                         key=lambda part: -part.drop))
    return Machine(parts, len(checks), with_command(_answers(checks), runs, "machine"))


def _rates(run: Run) -> list[RankRates]:
    """Return the rates of all ranks of the run in each case that has them."""
    return [fact for item in run.results.cases
            if item.status == "ok" and item.case.world_size == run.results.run.world_size > 1
            for fact in run.facts(item, RankRates, partial(
                run.samples.samples, item.case.case_id)) if fact.rates and min(fact.rates) > 0]


def _hosts(item: CaseResult) -> list[str]:
    detail: Any = item.detail
    return [str(detail.get(str(rank), {}).get("node") or "")
            for rank in range(item.case.world_size)]


def _of_links(item: CaseResult, pairs: PairRates, chance: float) -> _Checked:
    label, hosts = item.case.label, _hosts(item)
    if pairs.missing:
        return _Checked(label, missing=pairs.missing)
    numbers = np.array([hosts.index(host) for host in hosts], dtype=np.int64)
    across_hosts = (numbers[:, None] != numbers[None, :]).astype(np.int64)
    rates, *passes = (np.array(one, dtype=np.float64) for one in (pairs.rates, *pairs.passes))
    cells = cells_of(rates, across_hosts, numbers, passes, each_way=pairs.each_way)
    needed = _passes_needed(cells, chance)
    if item.case.world_size >= MIN_RANKS and needed > len(passes):
        return _Checked(label, missing="no slow link shows for sure in "
                        f"{plural(len(passes), 'pass')}", remedy=f"use {needed}")
    links = slow_links(cells, chance, each_way=pairs.each_way)
    parts = []
    for link in links.found:
        places = [hosts[at] if at < len(hosts) else "" for at in link.who]
        what = _NAMES[link.kind].format(*link.who, host=places[0], other=places[-1])
        parts.append(SlowPart(label, what, link.drop.value, *link.drop.ends))
    return _Checked(label, tuple(parts), links.detectable,
                    "" if links.detectable is not None else "needs 4 ranks or more")


def _of_ranks(run: Run, cases: Sequence[RankRates], chance: float) -> _Checked:
    label, ranks = f"rates of each rank in {plural(len(cases), 'case')}", len(cases[0].rates)
    passes = [one for case in cases for one in case.passes]
    needed = math.ceil(1 - math.log(chance / 2) / math.log(ranks))  # (1 / ranks) in each, of ranks
    if ranks >= MIN_RANKS and len(passes) < needed:
        return _Checked(label, missing=f"{plural(len(passes), 'pass')} of cases show no "
                        "slow rank for sure", remedy=f"use {needed}", about=RANKS)
    slow = slow_ranks(np.array([case.rates for case in cases]),
                      np.array(passes).reshape(-1, ranks), chance)
    if slow.detectable is None:
        return _Checked(label, missing="needs 4 ranks or more", about=RANKS)
    hosts = next((_hosts(item) for item in run.results.cases
                  if item.case.world_size == run.results.run.world_size and item.detail), [])
    whole = whole_hosts(slow.found, hosts) if hosts else {}
    of_hosts = {one.rank for same in whole.values() for one in same}
    parts = []
    for host, of_host in whole.items():  # the middle drop of its ranks, and their widest interval
        drops = sorted(one.drop.value for one in of_host)
        lows, highs = zip(*(one.drop.ends for one in of_host), strict=True)
        parts.append(SlowPart(label, f"all ranks of {host}", drops[len(drops) // 2], min(lows),
                              max(highs)))
    parts += [SlowPart(label, f"rank {one.rank}", one.drop.value, *one.drop.ends)
              for one in slow.found if one.rank not in of_hosts]
    return _Checked(label, tuple(parts), slow.detectable, about=RANKS)


def _passes_needed(cells: Cells, chance: float) -> int:
    """Return in how many passes a link has to be the slowest, as none is by chance."""
    links = max(cells.values.size, 2)
    return math.ceil(math.log(2 * links / chance) / math.log(links))


def _answers(checks: Sequence[_Checked]) -> Iterator[Answer]:
    of_parts = grouped((look.about, look) for look in checks)
    is_any = any(look.parts for look in checks)
    for about in sorted(of_parts, key=lambda one: not any(look.parts for look in of_parts[one])):
        yield from _answers_about(about, of_parts[about], is_any=is_any)
    if not checks:
        yield cannot_tell(LINKS, "not measured: add {kind: hardware, test: pairs}")


def _answers_about(
    about: str, checks: Sequence[_Checked], *, is_any: bool,
) -> Iterator[Answer]:
    """Yield the answers of checks of links, or of ranks; ``is_any``: whether any part is slow."""
    for part in sorted((part for look in checks for part in look.parts),
                       key=lambda part: -part.drop):
        yield Answer(
            CLEAR, f"{about}: {part.what} is {_percent(part.drop)} slower than the others "
            f"(CI {100 * part.low:.1f} to {100 * part.high:.1f})",
            (part.label, f"false alarms in at most {CHANCE:.0%} of reports",
             "fix: measure again with the hosts in another order; if it stays, check that cable, "
             "port or host"), subject=part.what)
    able = sorted(((look.detectable, look.label) for look in checks
                   if look.detectable is not None and not look.parts), reverse=True)
    seen = [one for one in able if one[0] <= MOST_UNSEEN]
    if seen and not is_any:
        yield Answer(NONE, f"{about}: none ({plural(len(seen), 'check')}; each would show a "
                     f"drop of {_percent(seen[0][0])} that lasts all passes)", (seen[0][1],))
    if blind := able[:len(able) - len(seen)]:
        yield cannot_tell(about, f"noise hides any drop below {_percent(blind[0][0])}",
                          (label for _, label in blind[:MOST_NAMED]), remedy="use more passes")
    for (why, remedy), count in Counter(
            (look.missing, look.remedy) for look in checks if look.missing).items():
        yield cannot_tell(about, f"{plural(count, 'check')}: {why}", remedy=remedy)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def machine_tables(machine: Machine) -> Iterator[Table]:
    """Yield a row for each part that is slow; nothing where none is."""
    if machine.parts:
        yield plain_table("slow parts of the machine", (
            Column("what", "what"), Column("case", "measured by"),
            Column("drop", "lost", Show.PERCENT, "%", "of the rate of the others", "less"),
            Column("interval", "99 % interval", Show.PERCENT, "%"),
        ), (Row((part.what, part.label, part.drop, Range(part.low, part.high)))
            for part in machine.parts))


def machine_charts(machine: Machine) -> Iterator[DotChart]:
    if machine.parts:
        yield DotChart(
            "Slow parts of the machine", "share of the rate of the others that is lost", "machine",
            ("Whisker: 99 % interval.",), (), Axis("lost", Show.SIGNIFICANT_PERCENT, "%"),
            (Column("case", "measured by"),), tuple(
                Dot(part.what, ChartPoint(part.drop, Range(part.low, part.high)), (part.label,))
                for part in machine.parts))


TOPIC = Topic("machine", "slow links and nodes", machine, machine_tables,
              machine_charts)

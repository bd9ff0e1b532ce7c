"""Whether a slow rank computes slowly, has a slow link, or has more to do than others.

Ranks that have the same to do are compared with one another; what all ranks with one share of the
work take longer than those with another is uneven partitioning, however slow it is. A link is
suspected where a rank's exchange takes longer although neither it nor another is late. What differs
counts from `LEAST` of the median on, and where it holds among all comparisons (Holm).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.answer import Run
from hpcbench.kinds.registry import kinds
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.waiting import EXCHANGE, RankWork
from hpcbench.statistics.family import holm
from hpcbench.statistics.standing_out import MIN_PASSES, standing

LEAST = 0.05
EXPLAINS = 0.8
"""A cause is named from this share of the excess on."""
COMPUTE, LINK, WORK = "slow compute", "slow link", "uneven work"
CAUSES = (COMPUTE, LINK, WORK)
MOST_STAMPS = 1_000_000
"""Ranks times samples of a case: of more, stamps are not read, which would take seconds each."""
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cause:
    """A rank, or all ranks with one share of the work, beside the next slowest.

    Attributes:
        path, label: of which results and case.
        cause: one of CAUSES.
        who: the rank, or the number of the share of the taken.
        group: what ranks with one share of the work have in common, such as a stage.
        ranks: how many ranks have that share.
        excess_s: how much longer it takes; ``low_s`` to ``high_s`` is the 99 % interval.
        share: that over the time of the next one; ``high_share`` is ``high_s`` over it.
        explains: which share of what that rank is behind it explains.
        chance: how likely equal ones differ so much.
        is_clear: whether it is named.
    """

    path: str
    label: str
    cause: str
    who: int
    group: str
    ranks: int
    excess_s: float
    low_s: float
    high_s: float
    share: float
    explains: float
    chance: float
    high_share: float
    is_clear: bool = False


def causes(runs: Sequence[Run]) -> tuple[Cause, ...]:
    """Return what each comparison of ranks of these runs says."""
    found = [replace(cause, path=run.path, label=item.case.label)
             for run in runs for item in run.results.cases
             if (taken := _taken(run, item)) is not None for cause in causes_of(taken)]
    return tuple(settled_causes(found))


def settled_causes(found: Sequence[Cause]) -> Iterator[Cause]:
    """Yield the causes with whether each holds among all of them."""
    for one, holds in zip(found, holm([one.chance for one in found], FALSE_ALARMS), strict=True):
        yield replace(one, is_clear=holds and one.explains >= EXPLAINS)


def _taken(run: Run, item: CaseResult) -> RankWork | None:
    if item.status != "ok" or item.case.world_size == 1 or item.case.kind not in kinds() or (
            item.case.kind in run.results.missing_kinds):
        return None
    n_stamps = item.case.world_size * (item.statistics.n if item.statistics else 0)
    return kinds()[item.case.kind].deriver().rank_work(
        item, lambda: run.samples.samples(item.case.case_id) if n_stamps <= MOST_STAMPS else None)


def causes_of(taken: RankWork) -> Iterator[Cause]:
    """Yield how ranks compare that have the same to do, then how the shares of work compare."""
    times_s = np.array(taken.times_s, dtype=np.float64)
    if times_s.ndim < 2 or times_s.shape[1] < MIN_PASSES:
        return
    groups: dict[int, list[int]] = {}
    for row, number in enumerate(taken.alike):
        groups.setdefault(number, []).append(row)
    if taken.what == EXCHANGE:
        if (cause := _link(taken, times_s)) is not None:
            yield cause
        return
    slow: dict[int, int] = {}
    for number, rows in groups.items():
        if len(rows) > 1:
            found = _apart(times_s[rows])
            rank = taken.ranks[rows[found.who]]
            slow[number] = rows[found.who]
            yield replace(found, cause=COMPUTE, who=rank, group=taken.group, ranks=1)
    if len(groups) > 1:
        yield from _between(taken, times_s, groups, slow)


def _between(
    taken: RankWork, times_s: Times, groups: Mapping[int, Sequence[int]], slow: Mapping[int, int],
) -> Iterator[Cause]:
    """Yield which share of the work takes longest on every rank that has it.

    It is compared by its quickest rank, so one slow rank does not make it slow; the others by the
    median of theirs. Of shares that one rank has each, none tells the work from the rank.
    """
    if any(len(rows) < 2 for rows in groups.values()):
        return
    numbers = list(groups)
    middle = np.stack([np.median(times_s[list(rows)], axis=0) for rows in groups.values()])
    at = int(middle.mean(axis=1).argmax())
    rows = list(groups[numbers[at]])
    quickest = rows[int(times_s[rows].mean(axis=1).argmin())]
    middle[at] = times_s[quickest]
    found = _apart(middle)
    if found.who == at:
        yield replace(found, cause=WORK, who=numbers[at], group=taken.group, ranks=len(rows))


def _link(taken: RankWork, times_s: Times) -> Cause | None:
    """Return the rank whose exchange takes longest, where that is more than what it is late by."""
    found = _apart(times_s)
    ready_s = np.array(taken.ready_s)
    if not ready_s.size:
        return None
    others = np.delete(ready_s, found.who, axis=0)
    late_s = float(np.mean(ready_s[found.who] - np.median(others, axis=0)))
    spread_s = float(np.mean(others.max(axis=0) - np.median(others, axis=0)))
    excess_s = max(found.excess_s, 0.0)
    behind_s = excess_s + max(late_s, 0.0) + spread_s
    return replace(found, cause=LINK, who=taken.ranks[found.who], ranks=1,
                   explains=excess_s / behind_s if behind_s > 0 else 0.0)


def _apart(times_s: Times) -> Cause:
    """Return how far the slowest of rows (row, pass) is from the next, from LEAST on."""
    found = standing(times_s, LEAST * float(np.median(times_s)))
    next_s = float(times_s[found.next_row].mean())
    return Cause("", "", "", found.row, "", 0, found.apart_s, found.low_s, found.high_s,
                 found.apart_s / next_s, 1.0, found.chance, found.high_s / next_s)

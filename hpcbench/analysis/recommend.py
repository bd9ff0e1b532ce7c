"""Which setting is the fastest for which task, and by how much, where that is clear.

The fastest way of each task is compared, in pairs, with each other way of it. Because it was chosen
as the fastest, a chance counts as often as there are ways. All comparisons of a report are one
family (Benjamini and Hochberg, a share of `FALSE_ALARMS`), so that of 100 reports of equal ways at
most one names any. A way is clearly slower only if it also takes at least `SMALLEST` more, and its
interval excludes `NEAR`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer, Asked, Run
from hpcbench.analysis.compare import NEAR, SMALLEST
from hpcbench.analysis.paired import FEWEST, Paired, hides, paired, time_of
from hpcbench.analysis.recommend_answers import answers
from hpcbench.analysis.sides import ENV, UNSET
from hpcbench.analysis.ways import Task, tasks_of
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.family import benjamini_hochberg


@dataclass(frozen=True, slots=True)
class Rival:
    """A way that is not the fastest: its time, and ``paired`` beside the fastest.

    ``false_share`` is after Benjamini and Hochberg; ``is_clear``, whether it is clearly slower.
    ``case_id`` is its case, of the first run that has it.
    """

    value: str
    name: str
    case_id: str
    time_s: float
    paired: Paired
    false_share: float | None = None
    is_clear: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ways of a task that differ in ``key``: the fastest, and the others from fast to slow.

    ``value`` is the fastest way's; rivals with the same value differ in their options.
    """

    kind: str
    task: str
    key: str
    value: str
    best: str
    case_id: str
    time_s: float
    rivals: tuple[Rival, ...]


@dataclass(frozen=True, slots=True)
class Preference:
    """Which value of one key is the fastest for one task, all other keys being the same.

    Attributes:
        value: that of the fastest way; ``against`` is the next value, ``paired`` its best way.
        among: the values that are not clearly slower, ``value`` first.
        has_default: whether the variable was also left unset.
    """

    kind: str
    task: str
    key: str
    value: str
    against: str
    paired: Paired
    certainty: str
    among: tuple[str, ...]
    has_default: bool


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The record of the topic."""

    rankings: tuple[Ranking, ...]
    preferences: tuple[Preference, ...]
    answers: tuple[Answer, ...]


def recommend(runs: Sequence[Run], asked: Asked) -> Recommendations:
    """Return which settings are best in these runs; cases of different runs are not compared."""
    passes = [run.results.plan.passes for run in runs]
    rankings = _judged([_ranking(task, passes) for task in tasks_of(runs)])
    preferences = tuple(map(_preference, rankings))
    return Recommendations(rankings, preferences, tuple(answers(preferences, runs)))


def _ranking(task: Task, passes: Sequence[int]) -> Ranking:
    best, *others = sorted(task.ways, key=time_of)
    rivals = tuple(Rival(way.value, way.name, way.case_id, time_of(way), paired(best, way, passes))
                   for way in others)
    return Ranking(task.kind, task.name, task.key, best.value, best.name, best.case_id,
                   time_of(best), rivals)


def _judged(rankings: Sequence[Ranking]) -> tuple[Ranking, ...]:
    """Return the rankings with which rivals are clearly slower, among all of them."""
    chances = [min(1.0, (len(one.rivals) + 1) * rival.paired.chance) for one in rankings
               for rival in one.rivals if rival.paired.chance is not None]
    shares = iter(benjamini_hochberg(chances))
    return tuple(replace(one, rivals=tuple(
        rival if rival.paired.chance is None else _decided(rival, next(shares))
        for rival in one.rivals)) for one in rankings)


def _decided(rival: Rival, false_share: float) -> Rival:
    found = rival.paired
    return replace(rival, false_share=false_share, is_clear=(
        false_share <= FALSE_ALARMS and found.ratio >= 1 + SMALLEST
        and found.low is not None and found.low > 1 + NEAR))


def _preference(ranking: Ranking) -> Preference:
    """Return which value of the key of a ranking is the fastest."""
    others = [rival for rival in ranking.rivals if rival.value != ranking.value]
    tied = [rival for rival in others if not rival.is_clear]
    few = any(rival.paired.n < FEWEST or hides(rival.paired, MOST_UNSEEN) for rival in tied)
    nearest = min(others, key=lambda rival: rival.paired.ratio)
    return Preference(
        ranking.kind, ranking.task, ranking.key, ranking.value, nearest.value, nearest.paired,
        CANNOT_TELL if few else NONE if tied else CLEAR,
        tuple(dict.fromkeys((ranking.value, *(rival.value for rival in tied)))),
        ranking.key.startswith(ENV) and UNSET in {ranking.value, *(one.value for one in others)})

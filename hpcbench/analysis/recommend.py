"""Which setting is the fastest for which task, and by how much, where that is clear.

The fastest way of each task is compared, in pairs, with each other way of it. Because it was chosen
as the fastest, a chance counts as often as there are ways. All comparisons of a report are one
family (Benjamini and Hochberg, a share of `FALSE_ALARMS`), so that of 100 reports of equal ways at
most one names any. A way is clearly slower only if it also takes at least `SMALLEST` more, and its
interval excludes `NEAR`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, NONE, Answer, Asked, Run
from hpcbench.analysis.compare import NEAR, SMALLEST
from hpcbench.analysis.paired import FEWEST, Paired, paired, time_of
from hpcbench.analysis.recommend_answers import answers
from hpcbench.analysis.ways import ENV, OPTION, RANKS, UNSET, Task, Way, tasks_of
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.family import benjamini_hochberg


@dataclass(frozen=True, slots=True)
class Rival:
    """A way that is not the fastest: its time, and ``paired`` beside the fastest.

    ``false_share`` is after Benjamini and Hochberg; ``is_clear``, whether it is clearly slower.
    """

    name: str
    setting: Mapping[str, str]
    time_s: float
    paired: Paired
    false_share: float | None = None
    is_clear: bool = False


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ways of a task: the fastest, and the others from fast to slow.

    ``keys`` are those that the ranking decides about.
    """

    kind: str
    task: str
    keys: tuple[str, ...]
    best: str
    setting: Mapping[str, str]
    time_s: float
    rivals: tuple[Rival, ...]


@dataclass(frozen=True, slots=True)
class Preference:
    """Which value of one key is the fastest for one task, whatever the other keys are set to.

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
    found = [*_rankings(tasks_of(runs), passes, ()),
             *_rankings(tasks_of(runs, across_ranks=True), passes, (RANKS,))]
    rankings = _judged(found)
    preferences = tuple(preference for ranking in rankings for preference in _preferences(ranking))
    return Recommendations(rankings, preferences, tuple(answers(preferences, runs)))


def _rankings(
    tasks: Iterator[Task], passes: Sequence[int], keys: tuple[str, ...],
) -> Iterator[Ranking]:
    """Yield the rankings of tasks; ``keys``: those that are decided about, () for all.

    Where the fastest way has no such option, the ways that have it are ranked on their own.
    """
    for task in tasks:
        if keys and not set(keys) <= set(task.keys):
            continue
        ranking = _ranking(task, task.ways, keys or task.keys, passes)
        yield ranking
        for key in task.keys if not keys else ():
            ways = [way for way in task.ways if key in way.setting]
            if key.startswith(OPTION) and key not in ranking.setting and len(
                    {way.setting[key] for way in ways}) > 1:
                yield _ranking(task, ways, (key,), passes)


def _ranking(
    task: Task, ways: Sequence[Way], keys: tuple[str, ...], passes: Sequence[int],
) -> Ranking:
    best, *others = sorted(ways, key=time_of)
    rivals = tuple(Rival(way.name, way.setting, time_of(way), paired(best, way, passes))
                   for way in others)
    return Ranking(task.kind, task.name, keys, best.name, best.setting, time_of(best), rivals)


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


def _preferences(ranking: Ranking) -> Iterator[Preference]:
    """Yield which value of each key of a ranking is the fastest."""
    for key in ranking.keys:
        value = ranking.setting.get(key)
        others = [rival for rival in ranking.rivals if rival.setting.get(key, value) != value]
        if value is None or not others:
            continue
        tied = [rival for rival in others if not rival.is_clear]
        few = any(rival.paired.n < FEWEST for rival in tied)
        nearest = min(others, key=lambda rival: rival.paired.ratio)
        yield Preference(
            ranking.kind, ranking.task, key, value, nearest.setting[key], nearest.paired,
            CANNOT_TELL if few else NONE if tied else CLEAR,
            tuple(dict.fromkeys((value, *(rival.setting[key] for rival in tied)))),
            key.startswith(ENV) and UNSET in {value, *(rival.setting[key] for rival in others)})

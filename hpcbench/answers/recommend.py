"""Which setting is the fastest for which task, and by how much, where that is clear.

The fastest way of each task is shown beside each other way of it. Because it was chosen as the
fastest, all pairs of ways are counted: those of one key are one family (Benjamini and Hochberg, a
share of `FALSE_ALARMS`), so that of 100 reports of equal ways at most one names any of a key
(`tasks.paired`). A slower way also takes at least `SMALLEST` more, and its interval excludes
`NEAR`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    MOST_ROWS,
    MOST_UNSEEN,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cores_first,
    ends_of,
    left_out,
    range_of,
    with_ends,
)
from hpcbench.answers.compare import NEAR, SMALLEST, pairs_text
from hpcbench.answers.compare_inputs import ENV, OPTION, UNSET, Side, has_pairs, told_key
from hpcbench.answers.compare_tables import DISAGREE
from hpcbench.answers.tasks import (
    FEWEST,
    OVER_PAIRS,
    PASSES,
    Paired,
    Task,
    TaskSetting,
    compared_tasks,
    counted_as,
    short,
    time_of,
)
from hpcbench.errors import command_line
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.units import grouped, in_launches, plural, size_text
from hpcbench.views.chart import Axis, ChartPoint, Dot, DotChart, Scale, is_wide
from hpcbench.views.columns import median_cell
from hpcbench.views.labels import own_words, without_shared
from hpcbench.views.table import Column, Group, Line, Row, Show, Table

SPANS = 3
_BYTES = re.compile(r"\d+B")


@dataclass(frozen=True, slots=True)
class Rival:
    """A way that is not the fastest: its time, ``paired`` beside the fastest, and whether it is
    clearly slower. ``case_id`` is its case, of the first run that has it; ``ends_s`` are those of
    its interval."""

    value: str
    name: str
    case_id: str
    time_s: float
    paired: Paired
    is_clear: bool = False
    ends_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Ranking:
    """The ways of a task that differ in ``key``: the one ahead by pairs, then the others by time.

    ``value`` and ``ends_s`` are the first way's; rivals of the same value differ in their options.
    """

    kind: str
    task: str
    key: str
    value: str
    best: str
    case_id: str
    time_s: float
    rivals: tuple[Rival, ...]
    ends_s: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class Preference:
    """Which value of one key is the fastest for one task, all other keys being the same.

    Attributes:
        value: that of the fastest way; ``against`` is the next value, ``paired`` its best way.
        among: the values that are not clearly slower, ``value`` first.
        has_default: whether the variable was also left unset.
        disagrees: whether the medians of both order them the other way."""

    kind: str
    task: str
    key: str
    value: str
    against: str
    paired: Paired
    certainty: str
    among: tuple[str, ...]
    has_default: bool
    disagrees: bool = False


@dataclass(frozen=True, slots=True)
class Recommendations:
    """The record of the topic."""
    rankings: tuple[Ranking, ...]
    preferences: tuple[Preference, ...]
    answers: tuple[Answer, ...]


def recommend(runs: Sequence[Run], options: TopicOptions) -> Recommendations:
    """Return the best settings in these runs; cases of different runs are not compared."""
    rankings = tuple(_ranking(*one) for one in compared_tasks([run.results for run in runs]))
    preferences = tuple(map(_preference, rankings))
    return Recommendations(rankings, preferences, tuple(
        cores_first(recommend_answers(preferences, runs), runs)))


def _ranking(task: Task, pairs: Mapping[tuple[int, int], Paired]) -> Ranking:
    """Return the ways from fast to slow by pairs.

    The one with the lowest median may be behind by pairs: it was lucky in its passes."""
    ways = task.ways
    at = min(range(len(ways)), key=lambda at: time_of(ways[at]))
    for _ in range(2):  # where no pass is missing, ratios to any way give the same order
        best = ways[at]
        beside = sorted(((pairs.get((at, of), Paired(time_of(way) / time_of(best))), of, way)
                         for of, way in enumerate(ways) if of != at), key=lambda one: one[0].ratio)
        at = beside[0][1] if beside[0][0].ratio < 1 else at
    rivals = tuple(Rival(way.value, way.name, way.case_id, time_of(way), one,
                         is_clearly_slower(one), _ends_of(way)) for one, _, way in beside)
    return Ranking(task.kind, task.name, task.key, best.value, best.name, best.case_id,
                   time_of(best), rivals, _ends_of(best))


def _ends_of(way: TaskSetting) -> tuple[float, float] | None:
    """Return the ends of the median's interval of a way of one run, where that is sound."""
    cells = [median_cell(item.statistics) for item in way.items.values()]
    return ends_of(cells[0]) if len(cells) == 1 else None


def is_clearly_slower(found: Paired) -> bool:
    return (found.false_share is not None and found.false_share <= FALSE_ALARMS
            and found.ratio >= 1 + SMALLEST and found.interval.ends[0] > 1 + NEAR)


def _hides(found: Paired) -> bool:
    """Return whether the interval leaves open that one way takes over MOST_UNSEEN more."""
    return found.low is not None and found.high is not None and (
        found.high > 1 + MOST_UNSEEN or found.low < 1 / (1 + MOST_UNSEEN))


def _preference(ranking: Ranking) -> Preference:
    others = [rival for rival in ranking.rivals if rival.value != ranking.value]
    tied = [rival for rival in others if not rival.is_clear]
    few = any(rival.paired.n < FEWEST or _hides(rival.paired) for rival in tied)
    nearest = min(others, key=lambda rival: rival.paired.ratio)
    return Preference(
        ranking.kind, ranking.task, ranking.key, ranking.value, nearest.value, nearest.paired,
        CANNOT_TELL if few else NONE if tied else CLEAR,
        tuple(dict.fromkeys((ranking.value, *(rival.value for rival in tied)))),
        ranking.key.startswith(ENV) and UNSET in {ranking.value, *(one.value for one in others)},
        nearest.time_s < ranking.time_s)


def recommend_answers(picks: Sequence[Preference], runs: Sequence[Run]) -> Iterator[Answer]:
    """Yield the answers for each key of each kind, the clear ones first."""
    if not picks:
        without = sum(item.statistics is None for run in runs for item in run.results.cases)
        yield Answer(CANNOT_TELL, "fastest setting: nothing to compare; " + (
            f"planned cases without a time: {without}" if without else
            "give a key that does the same work in another way, such as backend or strategy, "
            "several values"))
    subjects = _subjects(picks)
    side = Side("", tuple(run.results for run in runs))
    for (_, key), of_key in grouped(((one.kind, one.key), one) for one in picks).items():
        command = command_line("compare", ",".join(run.path for run in runs), "--by",
                               told_key(side, key)) if has_pairs(side, key) else ""
        groups = grouped(((one.certainty, _alike_in(one)), one) for one in of_key)
        for certainty in (CLEAR, NONE, CANNOT_TELL):
            for (which, _), alike in groups.items():
                if which == certainty:
                    yield _answer(alike, len(of_key), subjects, command)


def _alike_in(pick: Preference) -> str:
    """Return the text that tasks must share to be in one sentence."""
    if pick.certainty == CLEAR:
        return pick.value
    if pick.certainty == CANNOT_TELL:
        return ""
    return UNSET if pick.has_default and UNSET in pick.among else " ".join(sorted(pick.among))


def _subjects(picks: Sequence[Preference]) -> dict[str, str]:
    """Return a short name of each task: its first word, and those not common to its kind."""
    subjects = {}
    for names in grouped((one.kind, one.task) for one in picks).values():
        for name, short_name in zip(names, own_words(names), strict=True):
            subjects[name] = " ".join(  # 16KiB for 16384B
                size_text(int(word[:-1])).replace(" ", "") if _BYTES.fullmatch(word) else word
                for word in short_name.split())
    return subjects


def _answer(
    alike: Sequence[Preference], n_tasks: int, subjects: Mapping[str, str], command: str,
) -> Answer:
    """Return one answer for tasks with the same outcome, of ``n_tasks`` in all."""
    first, subject = alike[0], spans_text([subjects[one.task] for one in alike])
    sentence = {CLEAR: _clear, NONE: _none, CANNOT_TELL: _undecided}[first.certainty](
        alike, n_tasks, subject)
    remedy = _remedy(alike) if first.certainty == CANNOT_TELL else ""
    every = spans_text([subjects[one.task] for one in alike], len(alike))
    return Answer(first.certainty, sentence, (f"tasks: {every}; measured {_where(alike)}",),
                  command, subject, remedy)


def _clear(alike: Sequence[Preference], n_tasks: int, subject: str) -> str:
    pick = alike[0]
    if pick.has_default and pick.value == UNSET:
        return (f"{short(pick.key)}: keep the default; fastest "
                f"{_in_tasks(alike, n_tasks, subject)} "
f"{_where(alike)}")
    against = ", ".join(dict.fromkeys(other.against for other in alike))
    take = "take" if "," in against else "takes"
    return (f"{short(pick.key)}: {pick.value} fastest {_in_tasks(alike, n_tasks, subject)}; "
            f"{against} {take} {_ratios(pick.paired.ratio for pick in alike)} as long "
            f"{_where(alike)}")


def _none(alike: Sequence[Preference], n_tasks: int, subject: str) -> str:
    pick = alike[0]
    if pick.has_default and UNSET in pick.among:
        return (f"{short(pick.key)}: keep the default; no value is faster "
                f"{_in_tasks(alike, n_tasks, subject)}")
    return (f"{short(pick.key)}: no clear winner {_in_tasks(alike, n_tasks, subject)} "
            f"({_nearest(alike)})")


def _undecided(alike: Sequence[Preference], n_tasks: int, subject: str) -> str:
    pick, which = alike[0], _in_tasks(alike, n_tasks, subject)
    if all(other.paired.n < FEWEST for other in alike):
        return f"{short(pick.key)}: not enough data {which}"
    why = (f"not clear at {100 * FALSE_ALARMS:.0f} % false in all comparisons"  # its interval: 95 %
           if (pick.paired.low or 0) > 1 + NEAR else "too noisy")
    return f"{short(pick.key)}: undecided {which}, {why} ({_nearest(alike)})"


def _remedy(alike: Sequence[Preference]) -> str:
    """Return what decides, and what to take until then."""
    pick, pairs = alike[0], [one.paired for one in alike]
    keep = f"; keep the default {short(pick.key)}" if pick.has_default and any(
        one.n >= FEWEST for one in pairs) else ""
    return f"use {pairs_text(pairs, SMALLEST)}{keep}"


def _in_tasks(alike: Sequence[Preference], n_tasks: int, subject: str) -> str:
    return (f"for {subject}" if len(alike) == 1 else
            f"in {len(alike)} of {plural(n_tasks, 'task')}")


def _nearest(alike: Sequence[Preference]) -> str:
    """Return the nearest rival: ``gloo 1.08x as long as mpi, CI 0.90 to 1.29``."""
    pair, pairs = alike[0].paired, {(one.against, one.value) for one in alike}
    if len(pairs) > 1:
        apart = _ratios(one.paired.ratio for one in alike)
        return f"the two best are {apart} apart, geometric mean of {pair.unit}"
    ends = f"geometric mean of {pair.unit}" if len(alike) > 1 or pair.low is None else (
        f"CI {pair.low:.2f} to {pair.high:.2f}")
    ratios = _ratios(one.paired.ratio for one in alike)
    if any(one.disagrees for one in alike):
        ends += f"; {DISAGREE}"
    return f"{alike[0].against} {ratios} as long as {alike[0].value}, {ends}"


def _ratios(each: Iterable[float]) -> str:
    """Return ``3.0x to 27x``: the least and the greatest."""
    ratios = [*each]
    return " to ".join(dict.fromkeys(map(times_text, (min(ratios), max(ratios)))))


def times_text(ratio: float) -> str:
    """Return ``1.08x``, ``3.0x`` or ``27x``."""
    return f"{ratio:.{2 if ratio < 2 else 1 if ratio < 10 else 0}f}x"


def _where(alike: Sequence[Preference]) -> str:
    one = min((one.paired for one in alike), key=lambda found: found.n_launches)
    return (in_launches(one.n_launches) if one.unit == PASSES else
            f"over {plural(one.n_launches, 'launch')}")


def spans_text(names: Sequence[str], most: int = SPANS) -> str:
    """Return names in few words: neighbours that differ in one number become first ``to`` last, of
    which ``most`` are named."""
    spans: list[tuple[list[str], list[str]]] = []
    for words in (name.split() for name in names):
        at = _differ_in_one(spans[-1][0], words) if spans else None
        if at is not None and _differ_in_one(*spans[-1]) in (None, at):
            spans[-1] = (spans[-1][0], words)
        else:
            spans.append((words, words))
    shown = []
    for first, last in spans[:most]:
        at = _differ_in_one(first, last)
        shown.append(" ".join(f"{word} to {last[at]}" if place == at and at is not None else word
                              for place, word in enumerate(first)))
    more = len(spans) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _differ_in_one(first: Sequence[str], second: Sequence[str]) -> int | None:
    """Return the only place where two names differ, by a number; else None."""
    places = [at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    if len(first) != len(second) or len(places) != 1:
        return None
    words = first[places[0]], second[places[0]]
    return places[0] if all(any(map(str.isdigit, word)) for word in words) else None


WIDE = 8
"""Ratios of which the greatest is so many times the least are on a log scale."""
_COLUMNS = (
    Column("time", "time", Show.US, "us", "median of all samples; of several files their geometric "
           "mean", "less"),
    Column("ratio", "times as long", Show.RATIO, "by pairs",
           f"as the first: {OVER_PAIRS}"),
    Column("interval", "95 % CI", Show.RATIO, meaning="of this pair alone", optional=True),
    Column("pairs", "pairs", Show.TEXT, optional=True),
    Column("verdict", "verdict"))
_AHEAD = "ahead"
VERDICTS = {True: "slower", False: "undecided"}
_PAIRED = f"times as long, which orders the rows: {OVER_PAIRS}"


def recommend_tables(ranked: Recommendations) -> Iterator[Table]:
    """Yield a table of each kind and key: a group for each task, a row for each way."""
    of_keys = grouped(((one.kind, one.key), one) for one in ranked.rankings)
    for (kind, key), alike in of_keys.items():
        yield Table(f"which {short(key)} is fastest: {kind}",
                    (Column("way", short(key)), *_COLUMNS),
                    tuple(Group(ranking.task, tuple(_rows(ranking))) for ranking in alike),
                    notes=(Line(_PAIRED, about=("ratio",)),))


def _rows(ranking: Ranking) -> Iterator[Row]:
    disagree = [not one.is_clear and one.time_s < ranking.time_s for one in ranking.rivals]
    first = "fastest" if all(one.is_clear for one in ranking.rivals) else (
        VERDICTS[False] if any(disagree) else _AHEAD)
    yield Row((ranking.best, with_ends(ranking.time_s, ranking.ends_s), 1.0, None, None, first))
    for rival, is_shorter in zip(ranking.rivals, disagree, strict=True):
        pair = rival.paired
        verdict = "too few pairs" if pair.chance is None else (
            DISAGREE if is_shorter else VERDICTS[rival.is_clear])
        ratio = pair.ratio if round(pair.ratio, 2) >= 1 else None  # passes are missing
        yield Row((rival.name, with_ends(rival.time_s, rival.ends_s), ratio,
                   range_of(pair.interval), counted_as(pair.n, pair.unit), verdict))


def recommend_charts(ranked: Recommendations) -> Iterator[DotChart]:
    """Yield a chart of each kind: each way beside the one of its task that is ahead."""
    for kind, rankings in grouped((one.kind, one) for one in ranked.rankings).items():
        names = [one.task for one in rankings]
        shared, tasks = (names[0], [""] * len(names)) if len({*names}) == 1 else (
            without_shared(names))
        rows = [Dot(f"{task}: {_way(one, rival.name)}".removeprefix(": "),
                    ChartPoint(rival.paired.ratio, range_of(rival.paired.interval)),
                    (f"{VERDICTS[rival.is_clear]} {'than' if rival.is_clear else 'against'} "
                     f"{_way(one, one.best)}",))
                for task, one in zip(tasks, rankings, strict=True) for rival in one.rivals
                if range_of(rival.paired.interval) and round(rival.paired.ratio, 2) >= 1]
        if not rows:
            continue
        ends = [row.point.interval for row in rows if row.point.interval]
        scale = Scale.LOG if is_wide(ends, WIDE) else Scale.LINEAR
        yield DotChart(
            f"Which way is fastest: {kind}",
            shared or "time of each way over that of the one ahead", f"recommend_{kind}",
            ("Whisker: 95 % interval of the ratio over pairs of a pass.", *left_out(len(rows))), (),
            Axis("times as long as the way ahead, by pairs", Show.RATIO, scale=scale),
            (Column("verdict", "against the way ahead"),), tuple(rows[:MOST_ROWS]),
            reference=1.0)


def _way(ranking: Ranking, name: str) -> str:
    """Return a way's name; a value of an option gets its key, as it means nothing by itself."""
    return f"{short(ranking.key)}={name}" if ranking.key.startswith(OPTION) else name


TOPIC = Topic("recommend", "fastest settings", recommend,
              recommend_tables, recommend_charts)

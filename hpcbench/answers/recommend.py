"""Recommendations in sentences: what to set for what, and by how much that is faster.

Which setting is the fastest for which task, and by how much, where that is clear.

The fastest way of each task is compared, in pairs, with each other way of it. Because it was chosen
as the fastest, a chance counts as often as there are ways. All comparisons of a report are one
family (Benjamini and Hochberg, a share of `FALSE_ALARMS`), so that of 100 reports of equal ways at
most one names any. A way is clearly slower only if it also takes at least `SMALLEST` more, and its
interval excludes `NEAR`.

Recommendations as a table a kind, and as a chart.

Marks of rows of charts that are clearly the fastest, as recommendations say.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from hpcbench.answers.alternatives import (
    FEWEST,
    PASSES,
    Paired,
    Task,
    hides,
    paired,
    short,
    tasks_of,
    time_of,
)
from hpcbench.answers.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer, Run, TopicOptions
from hpcbench.answers.compare import NEAR, SMALLEST
from hpcbench.answers.compare_inputs import ENV, OPTION, UNSET
from hpcbench.errors import command_line
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.statistics.hypothesis_tests import benjamini_hochberg
from hpcbench.units import grouped, plural, size_text
from hpcbench.views.chart import (
    Axis,
    Bar,
    BarChart,
    Chart,
    ChartPoint,
    Dot,
    DotChart,
    Scale,
    is_wide,
)
from hpcbench.views.table import Column, Group, Range, Row, Show, Table
from hpcbench.views.words import without_shared

SPANS, EVIDENCE = 3, 8
_BYTES = re.compile(r"\d+B")
NOTHING = ("cannot tell which setting is best, because no task was done in two ways: give a key, "
           "such as backend or strategy, several values")


def recommend_answers(found: Sequence[Preference], runs: Sequence[Run]) -> Iterator[Answer]:
    """Yield the answers for each key of each kind, what is clear first."""
    if not found:
        yield Answer(CANNOT_TELL, NOTHING)
    subjects = _subjects(found)
    for (_, key), same in grouped(((one.kind, one.key), one) for one in found).items():
        command = command_line("compare", ",".join(run.path for run in runs), "--by", key)
        groups = grouped(((one.certainty, _alike_in(one)), one) for one in same)
        for certainty in (CLEAR, NONE, CANNOT_TELL):
            for (which, _), alike in groups.items():
                if which == certainty:
                    yield _answer(alike, len(same), subjects, command)


def _alike_in(one: Preference) -> str:
    """Return what tasks must share to be told in one sentence."""
    if one.certainty == CLEAR:
        return one.value
    if one.certainty == CANNOT_TELL:
        return ""
    return UNSET if one.has_default and UNSET in one.among else " ".join(sorted(one.among))


def _subjects(found: Sequence[Preference]) -> dict[str, str]:
    """Return a short name of each task: its first word, and in what tasks of its kind differ."""
    subjects = {}
    for names in grouped((one.kind, one.task.split()) for one in found).values():
        shared = set.intersection(*map(set, names))
        for words in names:
            kept = [word for word in words[1:] if word not in shared]
            subjects[" ".join(words)] = " ".join(map(_readable, [words[0], *kept]))
    return subjects


def _readable(word: str) -> str:
    """Return ``16KiB`` for ``16384B``, and any other word as it is."""
    return size_text(int(word[:-1])).replace(" ", "") if _BYTES.fullmatch(word) else word


def _answer(
    alike: Sequence[Preference], n_tasks: int, subjects: Mapping[str, str], command: str,
) -> Answer:
    """Return one answer for tasks with the same outcome, of ``n_tasks`` in all."""
    first, subject = alike[0], spans_text([subjects[one.task] for one in alike])
    tasks = (f"for {subject}" if n_tasks == 1 else
             f"for {len(alike)} of {plural(n_tasks, 'task')} ({subject})")
    sentence = {CLEAR: _clear, NONE: _none, CANNOT_TELL: _cannot_tell}[first.certainty](
        alike, tasks)
    evidence = tuple(f"{one.task}: {_rival(one)}" for one in alike[:EVIDENCE])
    if len(alike) > EVIDENCE:
        evidence += (f"and {len(alike) - EVIDENCE} more",)
    return Answer(first.certainty, sentence, evidence, command, subject)


def _clear(alike: Sequence[Preference], tasks: str) -> str:
    one, where = alike[0], _where(alike)
    if one.has_default and one.value == UNSET:
        words = f"leave {short(one.key)} unset {tasks}"
    elif one.key.startswith(ENV):
        words = f"set {short(one.key)}={one.value} {tasks}"
    else:
        words = f"{short(one.key)} {one.value} is fastest {tasks}"
    return f"{words}: {_next(alike)}, {where}"


def _none(alike: Sequence[Preference], tasks: str) -> str:
    one, where = alike[0], _where(alike)
    if one.has_default and UNSET in one.among:
        return (f"leave {short(one.key)} unset {tasks}: no value is clearly faster than the "
                f"default, {where}")
    return (f"no clear winner among {', '.join(one.among)} as {short(one.key)} {tasks}: "
            f"{_next(alike)}, {where}")


def _cannot_tell(alike: Sequence[Preference], tasks: str) -> str:
    one, among = alike[0], dict.fromkeys(value for one in alike for value in one.among)
    few = sum(one.paired.n < FEWEST for one in alike)
    reasons = [
        *([f"fewer than {FEWEST} passes or launches have both"] if few else []),
        *([f"95 % intervals reach beyond {MOST_UNSEEN:.0%}: {_next(alike)}, {_where(alike)}; use "
           "more passes"] if few < len(alike) else [])]
    keep = f"; leave {short(one.key)} unset meanwhile" if one.has_default else ""
    return (f"cannot tell which {short(one.key)} of {', '.join(among)} is fastest {tasks}, "
            f"because {', and '.join(reasons)}{keep}")


def _next(alike: Sequence[Preference]) -> str:
    """Return how much longer the next value takes; of several tasks the geometric mean."""
    if len(alike) == 1:
        (one,) = alike
        return f"{one.against} takes {ratio_text(one.paired)}"
    ratios = [one.paired.ratio for one in alike]
    mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
    return (f"the next takes {mean:.2f} times as long in the geometric mean "
            f"({min(ratios):.2f} to {max(ratios):.2f} from task to task{_least(alike)})")


def _least(alike: Sequence[Preference]) -> str:
    """Return where the lowest interval of what is clear ends."""
    lows = [one.paired.low for one in alike if one.paired.low is not None]
    if len(lows) < len(alike) or alike[0].certainty != CLEAR:
        return ""
    return f"; the lowest 95 % interval begins at {min(lows):.2f}"


def ratio_text(found: Paired) -> str:
    """Return a ratio with its interval and what it is of."""
    if found.low is None or found.high is None:
        return f"{found.ratio:.2f} times as long"
    return (f"{found.ratio:.2f} times as long (95 % interval {found.low:.2f} to {found.high:.2f}, "
            f"{found.n} {found.unit})")


def _rival(one: Preference) -> str:
    return f"{one.against} beside {one.value}: {ratio_text(one.paired)}"


def _where(alike: Sequence[Preference]) -> str:
    """Return for which launches it holds."""
    one = min((one.paired for one in alike), key=lambda found: found.n_launches)
    if one.unit != PASSES:
        return f"over {plural(one.n_launches, 'launch')}"
    return "in this launch" if one.n_launches == 1 else f"in these {one.n_launches} launches"


def spans_text(names: Sequence[str]) -> str:
    """Return names in few words: neighbours that differ in one number are first ``to`` last."""
    spans: list[tuple[list[str], list[str]]] = []
    for words in (name.split() for name in names):
        if spans and _differ_in_one(spans[-1][0], words) in _allowed(*spans[-1]):
            spans[-1] = (spans[-1][0], words)
        else:
            spans.append((words, words))
    shown = [_span_text(*span) for span in spans[:SPANS]]
    more = len(spans) - len(shown)
    return ", ".join([*shown, *([f"and {more} more"] if more else [])])


def _differ_in_one(first: Sequence[str], second: Sequence[str]) -> int | None:
    """Return the only place where two names differ, by a number; None if there is none such."""
    places = [at for at, (a, b) in enumerate(zip(first, second, strict=False)) if a != b]
    if len(first) != len(second) or len(places) != 1:
        return None
    at, = places
    return at if _has_digit(first[at]) and _has_digit(second[at]) else None


def _has_digit(word: str) -> bool:
    return any(character.isdigit() for character in word)


def _allowed(first: Sequence[str], last: Sequence[str]) -> set[int]:
    """Return the places in which a span may go on: the one in which it already differs."""
    at = _differ_in_one(first, last)
    return set(range(len(first))) if at is None else {at}


def _span_text(first: Sequence[str], last: Sequence[str]) -> str:
    at = _differ_in_one(first, last)
    return " ".join(first) if at is None else " ".join(
        f"{word} to {last[at]}" if place == at else word for place, word in enumerate(first))


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


def recommend(runs: Sequence[Run], asked: TopicOptions) -> Recommendations:
    """Return which settings are best in these runs; cases of different runs are not compared."""
    passes = [run.results.plan.passes for run in runs]
    rankings = _judged([_ranking(task, passes) for task in tasks_of(runs)])
    preferences = tuple(map(_preference, rankings))
    return Recommendations(rankings, preferences, tuple(recommend_answers(preferences, runs)))


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


MOST_ROWS = 60
"""More rows of a chart could not be read."""
WIDE = 8
"""Ratios of which the greatest is so many times the least are on a log scale."""
_COLUMNS = (
    Column("time", "time", Show.US, "us", better="less"),
    Column("ratio", "times as long", Show.RATIO, meaning="as the fastest, pairs of a pass"),
    Column("interval", "95 % interval", Show.RATIO, meaning="of this pair alone", optional=True),
    Column("false_share", "by chance", Show.SIGNIFICANT_PERCENT, "%",
           "of differences as sure as this one, among all of the run (Benjamini-Hochberg); clear "
           f"up to {FALSE_ALARMS:.0%}", optional=True),
    Column("pairs", "pairs", Show.TEXT, optional=True),
    Column("verdict", "verdict"))
TOLD = {True: "clearly slower", False: "no clear difference"}


def recommend_tables(found: Recommendations) -> Iterator[Table]:
    """Yield a table of each kind and key: a group for each task, a row for each way."""
    for (kind, key), same in grouped(((one.kind, one.key), one) for one in found.rankings).items():
        yield Table(f"which {short(key)} is fastest: {kind}",
                    (Column("way", short(key)), *_COLUMNS), tuple(map(_group, same)))


def _group(ranking: Ranking) -> Group:
    first = Row((ranking.best, ranking.time_s, 1.0, None, None, None, "shortest"))
    return Group(ranking.task, (first, *map(_row, ranking.rivals)))


def _row(rival: Rival) -> Row:
    found = rival.paired
    pairs = f"{found.n} {found.unit}"
    verdict = TOLD[rival.is_clear] if found.chance is not None else "cannot tell: too few pairs"
    return Row((rival.name, rival.time_s, found.ratio, _interval(rival), rival.false_share, pairs,
                verdict))


def _interval(rival: Rival) -> Range | None:
    low, high = rival.paired.low, rival.paired.high
    return None if low is None or high is None else Range(low, high)


def recommend_charts(found: Recommendations) -> Iterator[DotChart]:
    """Yield a chart of each kind: how much longer each way takes than the fastest of its task."""
    for kind, rankings in grouped((one.kind, one) for one in found.rankings).items():
        shared, tasks = _tasks([one.task for one in rankings])
        rows = [Dot(f"{task}: {_way(one, rival.name)}".removeprefix(": "), ChartPoint(
            rival.paired.ratio, _interval(rival)), (_verdict(one, rival),))
            for task, one in zip(tasks, rankings, strict=True)
            for rival in one.rivals if _interval(rival)]
        if not rows:
            continue
        ends = [row.point.interval for row in rows if row.point.interval]
        scale = Scale.LOG if is_wide(ends, WIDE) else Scale.LINEAR
        left = [f"The first {MOST_ROWS} of {len(rows)} are shown."] if len(rows) > MOST_ROWS else []
        yield DotChart(
            f"Which way is fastest: {kind}",
            shared or "time of each way over that of the fastest one",
            f"recommend_{kind}",
            ("Whisker: 95 % interval of the ratio over pairs of a pass.", *left), (),
            Axis("times as long as the fastest", Show.RATIO, scale=scale),
            (Column("verdict", "beside the fastest"),), tuple(rows[:MOST_ROWS]))


def _tasks(tasks: Sequence[str]) -> tuple[str, list[str]]:
    """Return what all tasks have alike, and of each task what it has not."""
    if len({*tasks}) == 1:
        return tasks[0], [""] * len(tasks)
    return without_shared(tasks)


def _verdict(ranking: Ranking, rival: Rival) -> str:
    """Return ``clearly slower than mpi``."""
    link = "than" if rival.is_clear else "from"
    return f"{TOLD[rival.is_clear]} {link} {_way(ranking, ranking.best)}"


def _way(ranking: Ranking, name: str) -> str:
    """Return a way's name; that of an option is a value alone, which tells nothing by itself."""
    return f"{short(ranking.key)}={name}" if ranking.key.startswith(OPTION) else name


FASTEST = "fastest"
_NOTE = ("Bold, fastest: clearly faster than each other row that does the same "
         "(hpcbench advise --only recommend).")
Winners = Mapping[str, frozenset[str]]
"""Id of a case that is clearly the fastest of its task -> those of the others of the task."""


def winners_of(found: Recommendations) -> Winners:
    """Return the cases beside which each other way of the same task is clearly slower."""
    return {one.case_id: frozenset(rival.case_id for rival in one.rivals)
            for one in found.rankings
            if one.rivals and all(rival.is_clear for rival in one.rivals)}


def with_winners(chart: Chart, winners: Winners) -> Chart:
    """Return the chart with its fastest rows marked, where one of rows that compare is that."""
    if isinstance(chart, DotChart):
        at = _winner(chart.rows, winners)
        return chart if at is None else replace(chart, notes=(*chart.notes, _NOTE), rows=tuple(
            replace(row, mark=FASTEST) if row is chart.rows[at] else row for row in chart.rows))
    if isinstance(chart, BarChart):
        best = [_winner(section.bars, winners) for section in chart.sections]
        if all(at is None for at in best):
            return chart
        sections = tuple(section if at is None else replace(section, bars=tuple(
            replace(bar, mark=FASTEST) if bar is section.bars[at] else bar
            for bar in section.bars)) for section, at in zip(chart.sections, best, strict=True))
        return replace(chart, sections=sections, notes=(*chart.notes, _NOTE))
    return chart


def _winner(rows: Sequence[Dot | Bar], winners: Winners) -> int | None:
    """Return the place of the one winner among rows of which others do the same; else None."""
    ids = [row.case_id for row in rows]
    found = [at for at, one in enumerate(ids) if winners.get(one, frozenset()) & {*ids}]
    return found[0] if len(found) == 1 else None

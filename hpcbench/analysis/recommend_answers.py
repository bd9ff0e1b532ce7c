"""Recommendations in sentences: what to set for what, and by how much that is faster."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from hpcbench.analysis.answer import CANNOT_TELL, CLEAR, MOST_UNSEEN, NONE, Answer, Run
from hpcbench.analysis.paired import FEWEST, PASSES, Paired
from hpcbench.analysis.sides import ENV, UNSET
from hpcbench.analysis.ways import short
from hpcbench.errors import command_line
from hpcbench.units import grouped, plural, size_text

if TYPE_CHECKING:
    from hpcbench.analysis.recommend import Preference

SPANS, EVIDENCE = 3, 8
_BYTES = re.compile(r"\d+B")
NOTHING = ("cannot tell which setting is best, because no task was done in two ways: give a key, "
           "such as backend or strategy, several values")


def answers(found: Sequence[Preference], runs: Sequence[Run]) -> Iterator[Answer]:
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

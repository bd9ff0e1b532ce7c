"""The topics of answers: the question of each, and how its record is shown.

The end of a report in a few lines: what the answers are, and what is suspicious.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.answers import (
    conditions as condition_views,
)
from hpcbench.answers import (
    cost as cost_views,
)
from hpcbench.answers import (
    diagnose as diagnose_views,
)
from hpcbench.answers import (
    machine as machine_views,
)
from hpcbench.answers import (
    scaling as scaling_views,
)
from hpcbench.answers import (
    waits as waits_views,
)
from hpcbench.answers.answer import CERTAINTIES, CLEAR, Analysis, Run, TopicOptions, TopicRecord
from hpcbench.answers.bandwidth import bandwidth, bandwidth_charts, bandwidth_tables
from hpcbench.answers.conditions import CANARY, NOISE, conditions
from hpcbench.answers.cost import cost
from hpcbench.answers.diagnose import diagnose
from hpcbench.answers.machine import machine
from hpcbench.answers.recommend import recommend, recommend_charts, recommend_tables
from hpcbench.answers.scaling import scaling
from hpcbench.answers.waits import waits
from hpcbench.reduce.results import CANARY_QUALITIES, QUALITIES, CaseResult, Results
from hpcbench.reduce.spread import launch_spreads
from hpcbench.units import grouped, plural
from hpcbench.views.chart import Chart
from hpcbench.views.columns import late_rank_lines
from hpcbench.views.table import Line, Table
from hpcbench.views.words import FLAGS, distinct, short_labels, shortened


@dataclass(frozen=True, slots=True)
class Topic:
    """One topic: ``analysis`` makes the record that ``tables`` and ``charts`` show.

    ``is_told`` is whether its answers stand in the summary, and at the end of a run and of
    ``show``, in short; ``is_quiet``, whether only what it finds stands at the end.
    """

    name: str
    question: str
    analysis: Analysis
    tables: Callable[[Any], Iterable[Table]]
    charts: Callable[[Any], Iterable[Chart]]
    is_told: bool = False
    is_quiet: bool = False


TOPICS: tuple[Topic, ...] = (
    Topic("recommend", "which setting is best for what, and by how much", recommend,
          recommend_tables, recommend_charts, is_told=True),
    Topic("diagnose", "which ranks the others wait for, and by how much", diagnose,
          diagnose_views.diagnose_tables, diagnose_views.diagnose_charts, is_told=True),
    Topic("waits", "how much ranks wait for one another, and what makes one slow", waits,
          waits_views.waits_tables, waits_views.waits_charts, is_told=True, is_quiet=True),
    Topic("conditions", "what changed or disturbed the machine meanwhile, and what that cost",
          conditions, condition_views.conditions_tables, condition_views.conditions_charts,
          is_told=True, is_quiet=True),
    Topic("machine", "which links and nodes of the machine are slow", machine,
          machine_views.machine_tables, machine_views.machine_charts),
    Topic("scaling", "how work scales over ranks, and what keeps it from it", scaling,
          scaling_views.scaling_tables, scaling_views.scaling_charts),
    Topic("cost", "what training costs in time, money and energy, and which choice is best", cost,
          cost_views.cost_tables, cost_views.cost_charts),
    Topic("bandwidth", "how much of the links was used, and which values cannot be true",
          bandwidth, bandwidth_tables, bandwidth_charts),
)
"""In the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What a topic says of runs: its ``record``, which has the answers."""

    topic: Topic
    record: TopicRecord


def told_of(run: Run) -> tuple[TopicResult, ...]:
    """Return what stands at the end of a run and in its summary."""
    return tuple(TopicResult(topic, topic.analysis([run], TopicOptions())) for topic in TOPICS
                 if topic.is_told)


MOST_ANSWERS, MOST_FLAGS = 3, 2
CANNOT_TRUST = "?"


def ending_lines(results: Results, told: Sequence[TopicResult] = ()) -> Iterator[Line]:
    """Yield the answers of topics, a few of each, and what is suspicious in at most five lines."""
    found, labels = False, short_labels(item.case.label for item in results.cases)
    for one in told:
        lines = [replace(line, text=shortened(line.text, labels)) for line in answer_lines(one)]
        found |= one.topic.is_quiet and bool(lines)
        yield from lines
    suspicious = [*late_rank_lines(results), *_flag_lines(results),
                  *_spread_lines(results, told)]
    if suspicious:
        yield from (Line(text, "warning", "" if number else "suspicious")
                    for number, text in enumerate(suspicious))
    elif not found:
        yield from _all_clear(results)


def _all_clear(results: Results) -> Iterator[Line]:
    """Yield that nothing is suspicious where all that would show it was there; else what was not.
    """
    stats = [item.statistics for item in results.cases if item.timing and item.statistics]
    if not stats:
        return
    noise = sorted({finding.code for finding in results.findings} & NOISE)
    unknown = sum(one.ci_low_s is None and one.launch_low_s is None for one in stats)
    if noise:
        yield Line(f"no row is flagged, but the machine was not quiet ({', '.join(noise)}): "
                   "expect long tails", "warning", "suspicious")
    elif unknown:
        yield Line(f"cannot tell whether times are suspicious: {unknown} of "
                   f"{plural(len(stats), 'row')} have too few samples for an interval; use more "
                   "iterations or passes", "warning", "suspicious")
    elif results.canary is None or results.canary.tau is None:
        yield Line("nothing suspicious: no flag; the canary ran too seldom to see drift")
    else:
        yield Line("nothing suspicious: no flag, and no drift of the machine was found")


def answer_lines(told: TopicResult) -> Iterator[Line]:
    """Yield the answers of a topic, those that find something first; of a quiet one no others."""
    ordered = sorted((one for one in told.record.answers
                      if one.certainty == CLEAR or not told.topic.is_quiet),
                     key=lambda one: CERTAINTIES.index(one.certainty))
    for number, answer in enumerate(ordered[:MOST_ANSWERS]):
        yield Line(answer.sentence, topic="" if number else told.topic.name)
    if (more := len(ordered) - MOST_ANSWERS) > 0:
        yield Line(f"{plural(more, 'more answer')} by hpcbench advise", "quiet", "")


def _flag_lines(results: Results) -> Iterator[str]:
    """Yield which flags rows have, the most frequent ones with their meaning."""
    timings = [item.timing for item in results.cases if item.timing is not None]
    counts = Counter(word for timing in timings for word in timing.quality if word in QUALITIES)
    shown = counts.most_common(MOST_FLAGS if len(counts) > MOST_FLAGS + 1 else MOST_FLAGS + 1)
    for word, count in shown:
        yield (f"{FLAGS.get(word, CANNOT_TRUST)} in {count} of {plural(len(timings), 'row')}: "
               f"{QUALITIES[word]}")
    more = [f"{counts[word]} {FLAGS.get(word, CANNOT_TRUST)}" for word in QUALITIES
            if word in counts and word not in dict(shown)]
    if more:
        yield f"further flags: {', '.join(more)}"


def flag_meaning(word: str) -> str:
    """Return the short form of a word of QUALITIES, and what it says."""
    return f"{FLAGS.get(word, CANNOT_TRUST)}: {QUALITIES[word]}"


def _spread_lines(results: Results, told: Sequence[TopicResult]) -> Iterator[str]:
    """Yield how far launches lie apart, and whether the machine drifted, in one line.

    Nothing of the drift where an answer has told of it.
    """
    parts = [*_launches(results.cases)]
    canary = results.canary
    is_told = any(answer.subject == CANARY and answer.certainty == CLEAR
                  for one in told for answer in one.record.answers)
    if canary is not None and canary.tau is not None and not is_told:
        parts += [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    if parts:
        yield "; ".join(parts)


def _launches(items: Iterable[CaseResult]) -> Iterator[str]:
    """Yield ``launches differ by 11 % (mpi) and 33 % (gloo)``: of the middle case of each."""
    spreads = {backend: spread.middle for backend, same in grouped(
        (item.case.backend, item) for item in items).items()
        if (spread := launch_spreads(same)) is not None}
    if spreads:
        told = distinct(f"{share:.0%} ({backend})" for backend, share in spreads.items())
        yield f"launches differ by {told.replace(',', ', ')} in the middle case"

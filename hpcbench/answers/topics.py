"""All topics of answers, and the end of a report: their answers in short, and what is suspicious.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from hpcbench.answers import (
    bandwidth,
    conditions,
    cost,
    diagnose,
    machine,
    recommend,
    scaling,
    waits,
)
from hpcbench.answers.answer import CERTAINTIES, CLEAR, Run, Topic, TopicOptions, TopicRecord
from hpcbench.answers.conditions import CANARY, NOISE
from hpcbench.reduce.results import CANARY_QUALITIES, QUALITIES, Results
from hpcbench.reduce.spread import launch_spreads
from hpcbench.units import grouped, plural
from hpcbench.views.columns import late_rank_lines
from hpcbench.views.table import FLAGS, Line, distinct, short_labels, shortened

TOPICS: tuple[Topic, ...] = (
    recommend.TOPIC, diagnose.TOPIC, waits.TOPIC, conditions.TOPIC, machine.TOPIC, scaling.TOPIC,
    cost.TOPIC, bandwidth.TOPIC)
"""In the order in which they are shown."""
MOST_ANSWERS, MOST_FLAGS = 3, 2
CANNOT_TRUST = "?"


@dataclass(frozen=True, slots=True)
class TopicResult:
    """What a topic says of runs: its ``record``, which has the answers."""

    topic: Topic
    record: TopicRecord


def told_of(run: Run) -> tuple[TopicResult, ...]:
    """Return what stands at the end of a run and in its summary."""
    return tuple(TopicResult(topic, topic.analysis([run], TopicOptions())) for topic in TOPICS
                 if topic.is_told)


def ending_lines(results: Results, told: Sequence[TopicResult] = ()) -> Iterator[Line]:
    """Yield the answers of topics, a few of each, and what is suspicious in at most five lines."""
    found, labels = False, short_labels(item.case.label for item in results.cases)
    for one in told:
        lines = [replace(line, text=shortened(line.text, labels)) for line in answer_lines(one)]
        found |= one.topic.is_quiet and bool(lines)
        yield from lines
    suspicious = [*late_rank_lines(results), *_flag_lines(results), *_spread_line(results, told)]
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
    return f"{FLAGS.get(word, CANNOT_TRUST)}: {QUALITIES[word]}"


def _spread_line(results: Results, told: Sequence[TopicResult]) -> Iterator[str]:
    """Yield how far launches lie apart, and whether the machine drifted, in one line.

    Nothing of the drift where an answer has told of it.
    """
    spreads = {backend: spread.middle for backend, same in grouped(
        (item.case.backend, item) for item in results.cases).items()
        if (spread := launch_spreads(same)) is not None}
    parts = []
    if spreads:
        shares = distinct(f"{share:.0%} ({backend})" for backend, share in spreads.items())
        parts.append(f"launches differ by {shares.replace(',', ', ')} in the middle case")
    canary = results.canary
    is_told = any(answer.subject == CANARY and answer.certainty == CLEAR
                  for one in told for answer in one.record.answers)
    if canary is not None and canary.tau is not None and not is_told:
        parts += [f"{word}: {CANARY_QUALITIES[word]}" for word in canary.quality]
    if parts:
        yield "; ".join(parts)

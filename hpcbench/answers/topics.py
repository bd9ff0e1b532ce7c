"""The topics of a run, and its summary: their answers in short, flags and warnings."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

from hpcbench.answers import recommend
from hpcbench.answers.answer import (
    CANARY,
    CERTAINTIES,
    CLEAR,
    Run,
    Topic,
    TopicOptions,
    TopicRecord,
)
from hpcbench.answers.verdict import AMBER, GREEN, RED, verdict_of
from hpcbench.records import dataclass
from hpcbench.reduce.results import CANARY_QUALITIES, QUALITIES, Results
from hpcbench.reduce.spread import launch_spreads
from hpcbench.registry import TopicSpec, in_this_package, offered
from hpcbench.units import grouped, plural, with_sizes
from hpcbench.views.columns import TABLED
from hpcbench.views.labels import short_labels, shortened
from hpcbench.views.presenter import presenter_of
from hpcbench.views.table import FLAGS, Line

MOST_ANSWERS = 3
MOST_FLAGGED = 2
"""Rows of a flag that the summary names."""
CANNOT_TRUST = "?"
_TONES = {GREEN: "good", AMBER: "caution", RED: "bad"}
_CASE = re.compile(r"^case (.+) \([0-9a-f]+\): ")
"""How a finding on one case begins: its label and id."""


@dataclass(frozen=True, slots=True)
class TopicResult:
    """The result of a topic on runs: its ``record``, which has the answers.

    ``names``: label of a case -> a short name that distinguishes it."""

    topic: Topic
    record: TopicRecord
    names: Mapping[str, str] = field(default_factory=dict)


def topics(*, of_summary: bool = False) -> list[Topic]:
    """Return the topics of a report, or of a summary: the settings, and what our parts offer.

    What another package offers is left to ``advise``: its failure must not cost a run."""
    return [recommend.TOPIC, *(
        spec.load() for spec in offered(TopicSpec).values()
        if in_this_package(spec.path) and not spec.is_recorded and spec.in_summary >= of_summary)]


def topic_results(run: Run) -> tuple[TopicResult, ...]:
    """Return the results of the topics that stand at the end of a run and in its summary."""
    return tuple(TopicResult(topic, topic.analysis([run], TopicOptions()))
                 for topic in topics(of_summary=True))


def summary_lines(results: Results, advice: Sequence[TopicResult] = ()) -> Iterator[Line]:
    """Yield the summary of a run, a line a fact: verdict, answers, highlights of kinds, flags,
    warnings."""
    yield replace(verdict_line(results), topic="verdict")
    yield from best_lines(results, advice)
    yield from problem_lines(results, advice)


def verdict_line(results: Results) -> Line:
    """Return the verdict on a run, in the tone of its state."""
    found = verdict_of(results)
    return Line(shortened(found.sentence, case_names([results])), _TONES[found.state])


def best_lines(results: Results, advice: Sequence[TopicResult]) -> Iterator[Line]:
    """Yield the best settings, and the highlights of each kind."""
    yield from _answer_lines(
        case_names([results]), [one for one in advice if one.topic is recommend.TOPIC])
    for kind, items in grouped((item.case.kind, item) for item in results.cases).items():
        if kind not in results.missing_kinds:
            yield from (shown for shown in presenter_of(kind).overviews(
                items, results.derived.get(kind, {})) if isinstance(shown, Line) and shown.topic)


def problem_lines(
    results: Results, advice: Sequence[TopicResult], *, warnings: bool = True,
) -> Iterator[Line]:
    """Yield the problems of the machine and of the samples, or that there are none; not
    ``warnings``: without the findings, which stand beside them."""
    labels = case_names([results])
    yield from _answer_lines(labels, [one for one in advice if one.topic is not recommend.TOPIC])
    yield from _flag_lines(results, labels)
    yield from _spread_lines(results, advice)
    if warnings:
        yield from warning_lines(results, labels)


def case_names(several: Sequence[Results]) -> Mapping[str, str]:
    """Return the label of each case without words that distinguish no case that ran."""
    items = [item for results in several for item in results.cases]
    ran = [item.case.label for item in items if item.status in TABLED]
    own = {item.case.workload.name for item in items}
    labels = {**short_labels((item.case.label for item in items), own), **short_labels(ran, own)}
    return {label: with_sizes(short) for label, short in labels.items()}


def _answer_lines(
    labels: Mapping[str, str], advice: Sequence[TopicResult],
) -> Iterator[Line]:
    before = ""
    for text, tone in (found for one in advice for found in _sentences(one)):
        line = _labelled(shortened(text, labels), tone)
        yield line if line.topic != before else replace(line, topic="")
        before = line.topic or before


def _labelled(text: str, tone: str = "plain") -> Line:
    """Return a sentence as a line; the text before its first colon is the topic."""
    label, colon, rest = text.partition(": ")
    return Line(rest, tone, label) if colon else Line(text, tone, "")


def _sentences(result: TopicResult) -> Iterator[tuple[str, str]]:
    """Yield the answers of a topic, findings first; a quiet topic has only these."""
    ordered = sorted((one for one in result.record.answers
                      if one.certainty == CLEAR or not result.topic.is_quiet),
                     key=lambda one: CERTAINTIES.index(one.certainty))
    for answer in ordered[:MOST_ANSWERS]:
        is_bad = result.topic.name != "recommend" and answer.certainty == CLEAR
        yield answer.text, "warning" if is_bad else "plain"
    if (more := len(ordered) - MOST_ANSWERS) > 0:
        yield f"{result.topic.name}: {plural(more, 'more answer')} (hpcbench advise)", "quiet"


def warning_lines(results: Results, labels: Mapping[str, str]) -> Iterator[Line]:
    """Yield the notes of the checks, the first of each code and how many more there are."""
    notes = grouped((one.code, one.message) for one in results.findings if one.scope == "note")
    for code, messages in notes.items():
        more = f" (and {len(messages) - 1} more: hpcbench show -v)" if len(messages) > 1 else ""
        text = _CASE.sub(r"\1: ", messages[0])
        yield Line(f"{shortened(text, labels)}{more}", "warning", f"warning[{code}]")


def _flag_lines(results: Results, labels: Mapping[str, str]) -> Iterator[Line]:
    """Yield which flags rows have and the first such rows; or that none has any.

    Late starts are left to their warning, which gives the delay."""
    timed = [item for item in results.cases if item.timing is not None]
    flagged = grouped((flag, item) for item in timed if item.timing
                      for flag in item.timing.quality if flag in QUALITIES)
    warned = any(finding.code == "HB125" for finding in results.findings)
    for flag, items in flagged.items():
        if flag == "late_starts" and warned:
            continue
        name = f"flag {FLAGS[flag]}" if flag in FLAGS else f"unreliable CI ({CANNOT_TRUST})"
        rows = ", ".join(labels[item.case.label] for item in items[:MOST_FLAGGED])
        more = len(items) - MOST_FLAGGED
        yield Line(f"{rows}{f' and {more} more' if more > 0 else ''}: {QUALITIES[flag]}",
                   "warning", name)
    stats = [item.statistics for item in timed if item.statistics]
    unknown = sum(one.ci_low_s is None and one.launch_low_s is None for one in stats)
    if not flagged and unknown:
        yield Line(f"too few samples for an interval in {unknown} of {plural(len(stats), 'row')}; "
                   "use more iterations or passes", "warning", "intervals")
    elif not flagged and stats:
        yield Line("none", topic="flagged rows")


def flag_meaning(flag: str) -> str:
    return f"{FLAGS.get(flag, CANNOT_TRUST)}: {QUALITIES[flag]}"


def _spread_lines(results: Results, advice: Sequence[TopicResult]) -> Iterator[Line]:
    """Yield how far launches lie apart, and the drift of the machine if no answer has it."""
    spreads = {backend: spread.middle for backend, same in grouped(
        (item.case.backend, item) for item in results.cases).items()
        if (spread := launch_spreads(same)) is not None}
    if spreads:
        shares = ", ".join(f"{100 * share:.0f} %" + (f" ({backend})" if backend else "")
                           for backend, share in spreads.items())
        yield Line(f"differ by {shares} in the median case", topic="launches")
    canary = results.canary
    is_answered = any(answer.subject == CANARY and answer.certainty == CLEAR
                      for one in advice for answer in one.record.answers)
    if canary is not None and canary.tau is not None and not is_answered:
        yield from (Line(CANARY_QUALITIES[flag], "warning", flag) for flag in canary.quality)

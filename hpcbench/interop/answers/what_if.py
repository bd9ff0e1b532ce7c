"""The predicted time of a recorded job's communication: its calls, as measured in other ways.

The time is that of the record's mean rank. Calls without delay wait no longer than in isolation
(`answers.causes`). In another setting, with even parts, or on fewer nodes, isolated calls take a
ratio of their present time; only that part of the recorded time changes, and the time of recorded
calls beyond isolation stays. A gain is ``real`` where both were measured in the same passes, as
`compare --by` has them, with a given number of iterations; else it is ``predicted``: other
differences between runs are unknown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.answers import answer
from hpcbench.answers.compare import NEAR, SMALLEST
from hpcbench.errors import UsageError
from hpcbench.interop.answers.causes import call_name, causes
from hpcbench.interop.answers.isolated_calls import (
    FEWEST,
    ComparedCalls,
    Env,
    PassTimes,
    Ratio,
    RecordedCalls,
    RecordedJob,
    even_sizes,
    isolated_times,
    mean_time,
    of_most_nodes,
    ratio_of,
    recorded_job,
    span_text,
)
from hpcbench.interop.dialects.traffic import sweep_of
from hpcbench.operations.traffic import TrafficRecord
from hpcbench.records import dataclass
from hpcbench.statistics.order import Interval
from hpcbench.units import format_seconds, grouped, plural, three_digits
from hpcbench.views.table import Column, Line, Range, Row, Show, Table

LATENESS, SETTING, BALANCE, NODES = "lateness", "setting", "balance", "nodes"
REAL, PREDICTED, SLOWER, UNDECIDED = "real", "predicted", "slower", "undecided"
FALSE_SHARE = 0.05
"""The chance of a false verdict on any alternative of a record."""
PROOF_PASSES, PROOF_CALLS = 9, 30
"""Passes, and calls of a pass, of both sides of a sweep that proves a gain."""
PRESENT = " as recorded"
"""Follows the name of a call that is measured in the alternative only."""
ALL, LEAST_COVERED = 0.995, 0.5
"""Measured shares of the time of the calls that change: complete, and the least for a verdict."""
ASSUMED = ("Assumed: waiting and contention stay, and so do calls that were not measured. The job "
           "gains less where computation hides communication.")


@dataclass(frozen=True, slots=True)
class Alternative:
    """The recorded communication in an alternative.

    Attributes:
        name: the alternative in words; ``what`` is LATENESS, SETTING, BALANCE or NODES.
        time_s: of all recorded communication of the mean rank, predicted; None: not measured.
        change: of that time, as a share of the recorded one, below 0 where it is less; with its
            95 % interval where there are FEWEST passes.
        exposed: the same as a share of the recorded span, if nothing hides communication.
        pairs: passes, or launches, that measured both; 0: each side in its own.
        covered: share of the recorded time of the calls that change, for which both are measured.
        verdict: ``real``, ``predicted``, ``slower`` or ``undecided``.
        missing: what is not measured, or too little; else empty.
        backend, env: those of a setting; "" as recorded.
        signatures: indices of the calls that are covered."""

    name: str
    what: str
    time_s: float | None = None
    change: Interval | None = None
    exposed: float | None = None
    pairs: int = 0
    covered: float = 0.0
    verdict: str = UNDECIDED
    missing: str = ""
    backend: str = ""
    env: Env = ()
    signatures: tuple[int, ...] = ()

    @property
    def is_gain(self) -> bool:
        return self.verdict in (REAL, PREDICTED)


@dataclass(frozen=True, slots=True)
class WhatIf:
    """The record of the topic.

    ``time_s``: recorded communication of the mean rank; ``span_s``: from its first issue to its
    last end; ``of_span``: communication's share of it; both None where calls were lost or have no
    times. ``untimed``: calls of all ranks that have no time and are not measured.
    ``env``: variables of the present setting, if it was not measured without."""

    time_s: float
    span_s: float | None
    of_span: float | None
    untimed: int
    env: Env
    alternatives: tuple[Alternative, ...]
    answers: tuple[answer.Answer, ...]


def what_if(runs: Sequence[answer.Run], options: answer.TopicOptions) -> WhatIf:
    record = options.traffic
    assert record is not None  # the topic is for those who give one
    here = of_most_nodes(runs)
    job = recorded_job(record, here)
    made = [*_settings(job), *_balanced(job), *_nodes(job, runs, here)]
    judged = [_judged(one, ratio, sum(ratio is not None for _, ratio in made))
              for one, ratio in made]
    ordered = (_without_lateness(job, here, options), *sorted(
        judged, key=lambda one: one.change.value if one.change else math.inf))
    return WhatIf(job.time_s, job.span_s, job.of_span, job.untimed, job.env, ordered,
                  tuple(_answers(job, ordered)))


Made = tuple[Alternative, Ratio | None]


def _settings(job: RecordedJob) -> Iterator[Made]:
    """Yield each backend and environment that was measured and is not the present one."""
    backends = {one.form.backend for one in job.calls if one.form}
    seen = dict.fromkeys((form.backend, env) for form, env in job.measured.times)
    others = dict.fromkeys(
        ("" if backend in backends and env != job.env else backend, env) for backend, env in seen
        if env != job.env or backends != {backend})
    for backend, env in others:
        changed = [one for one in job.calls if one.time_s and (
            env != job.env or not one.form or one.form.backend != backend)]
        words = [f"backend {backend}"] if backend else []
        words += [f"{name}={value}" for name, value in env if (name, value) not in job.env]
        words += [f"{name} unset" for name, _ in job.env if name not in dict(env)]
        alternative = _made(job, Alternative(" ".join(words), SETTING, backend=backend, env=env), [
            (one, job.present(one), _in_setting(job, one, backend, env)) for one in changed])
        if alternative[0].signatures or alternative[0].missing.endswith(PRESENT):
            yield alternative


def _in_setting(job: RecordedJob, calls: RecordedCalls, backend: str, env: Env) -> PassTimes | None:
    """Return the times in another setting; None if it ran on another device than at present."""
    if calls.form is None:
        return None
    form, devices = replace(calls.form, backend=backend or calls.form.backend), job.measured.devices
    device, other = devices.get((calls.form, job.env)), devices.get((form, env))
    return job.measured.at(form, env, calls.size_bytes) if device in (None, other) else None


def _balanced(job: RecordedJob) -> Iterator[Made]:
    """Yield the alternative with all parts of their mean size, where some are not.

    Times at sizes that are not measured are interpolated; then a gain is only predicted."""
    uneven = [one for one in job.calls if one.time_s and one.size_bytes != one.balanced_bytes]
    if uneven:
        made, ratio = _made(job, Alternative("balanced sizes", BALANCE), [
            (one, job.between(one, one.size_bytes), job.between(one, one.balanced_bytes))
            for one in uneven])
        is_exact = all(job.present(one) and job.present(one._replace(
            size_bytes=one.balanced_bytes)) for one in uneven if one.signature in made.signatures)
        yield made, ratio if is_exact or ratio is None else ratio._replace(is_proof=False)


def _nodes(job: RecordedJob, runs: Sequence[answer.Run],
           here: Sequence[answer.Run]) -> Iterator[Made]:
    """Yield the record on fewer nodes, for each set of them that was measured."""
    nodes, ranks = set(here[0].results.run.nodes), here[0].results.run.world_size
    fewer = grouped((tuple(sorted(nodes - set(run.results.run.nodes))), run) for run in runs
                    if set(run.results.run.nodes) < nodes)
    if len(nodes) > 1 and not fewer:
        yield Alternative("without a node", NODES,
                          missing="not measured: run the same sweep without that node"), None
    for left, same in fewer.items():
        ranks_then = {ranks: same[0].results.run.world_size}
        measured = isolated_times(enumerate(same, len(runs)))
        yield _made(job, Alternative(f"without {', '.join(left)}", NODES), [
            (one, job.present(one), measured.at(
                replace(one.form, ranks=ranks_then.get(one.form.ranks, one.form.ranks)), job.env,
                one.size_bytes) if one.form else None)
            for one in job.calls if one.time_s])


def _made(
    job: RecordedJob, alternative: Alternative,
    changed: Sequence[tuple[RecordedCalls, PassTimes | None, PassTimes | None]],
) -> Made:
    """Return the alternative with its change, and the ratio of times in it to those at present.

    ``changed``: calls, with their times at present and in the alternative."""
    parts, missing, covered_s, signatures = [], [], 0.0, []
    for calls, present, other in changed:
        if not other or not present:
            name = call_name(job.record, job.record.signatures[calls.signature])
            missing.append(name + PRESENT * (other is not None))
            continue
        parts.append(ComparedCalls(calls.calls, present, other))
        signatures.append(calls.signature)
        covered_s += calls.time_s
    total_s = sum(calls.time_s for calls, *_ in changed)
    covered = covered_s / total_s if total_s else float(not missing)
    lacking = f"not measured: {', '.join(missing[:2])}" if missing else ""
    lacking += f" and {len(missing) - 2} more" if len(missing) > 2 else ""
    alternative = replace(
        alternative, covered=covered, missing=lacking, signatures=tuple(signatures))
    if not parts:
        return alternative, None
    ratio = ratio_of(parts, job.proofs)
    isolated_s = sum(part.calls * mean_time(part.present) for part in parts)
    share = min(isolated_s, covered_s) / job.time_s
    return _changed(job, alternative, ratio.interval.map(lambda value: share * (value - 1))), ratio


def _changed(job: RecordedJob, one: Alternative, change: Interval) -> Alternative:
    exposed = None if job.of_span is None else change.value * job.of_span
    return replace(one, time_s=job.time_s * (1 + change.value), change=change, exposed=exposed)


def _judged(alternative: Alternative, ratio: Ratio | None, family: int) -> Alternative:
    """Return an alternative with its verdict, as one of ``family`` tests."""
    if ratio is None:
        return alternative
    if ratio.interval.low is None:
        return replace(alternative, missing=alternative.missing or f"fewer than {FEWEST} passes")
    return replace(alternative, pairs=ratio.pairs, verdict=verdict_of(
        ratio, family) if alternative.covered >= LEAST_COVERED else UNDECIDED)


def verdict_of(ratio: Ratio, family: int = 1) -> str:
    """Return the verdict on a ratio, one of ``family`` tests; UNDECIDED below SMALLEST or NEAR."""
    low, high = ratio.interval.ends
    if ratio.chance * family > FALSE_SHARE:
        return UNDECIDED
    if ratio.interval.value <= 1 / (1 + SMALLEST) and high < 1 / (1 + NEAR):
        return REAL if ratio.is_proof else PREDICTED
    return SLOWER if ratio.interval.value >= 1 + SMALLEST and low > 1 + NEAR else UNDECIDED


def _without_lateness(job: RecordedJob, here: Sequence[answer.Run],
                      options: answer.TopicOptions) -> Alternative:
    """Return the record without the arrivals of its `causes`, with independent errors."""
    alternative = Alternative("no delays", LATENESS)
    of_signature = {cause.signature: cause.arrival for cause in causes(here, options).forms
                    if cause.arrival is not None}
    covered = [calls for calls in job.calls if calls.signature in of_signature]
    if not covered or not job.time_s:
        return replace(alternative, missing="not measured: hpcbench run traffic.json")
    shares = [calls.time_s / job.time_s for calls in covered]
    arrivals = [of_signature[calls.signature] for calls in covered]
    value = sum(share * one.value for share, one in zip(shares, arrivals, strict=True))
    below, above = (math.sqrt(sum((share * (one.ends[end] - one.value)) ** 2 for share, one in zip(
        shares, arrivals, strict=True))) for end in (0, 1))
    changed = _changed(job, alternative, Interval(-value, -value - above, -value + below))
    is_gain = value >= SMALLEST and value - below > NEAR
    return replace(changed, covered=sum(shares), signatures=tuple(one.signature for one in covered),
                   verdict=PREDICTED if is_gain else UNDECIDED)


def _answers(job: RecordedJob, alternatives: Sequence[Alternative]) -> Iterator[answer.Answer]:
    lateness, *others = alternatives
    if not job.time_s:
        yield answer.cannot_tell("what if", "the record has no durations, and none of its calls is "
                                 "measured: hpcbench run traffic.json")
        return
    gains = [one for one in others if one.is_gain]
    for one in sorted(gains, key=lambda one: one.verdict != REAL)[:1]:
        proof = f", {one.pairs} pairs" if one.verdict == REAL else (
            "; prove it: --prove FILE" if _provable([one]) else "")
        yield answer.Answer(answer.CLEAR, f"gain {one.verdict}: {_less(one)}{proof}", (_step(one),))
    if lateness.is_gain:
        yield answer.Answer(answer.CLEAR, f"delays: {_less(lateness)}", (_step(lateness),))
    if not gains:
        yield _no_gain([one for one in others if one.change])


def _no_gain(measured: Sequence[Alternative]) -> answer.Answer:
    none = f"gain: none of {plural(len(measured), 'alternative')} is"
    if not measured:
        return answer.cannot_tell("gain",
                                  "no alternative is measured; give backend or env of the sweep "
                                  "several values (hpcbench gen-config --from)")
    if all(one.verdict == SLOWER for one in measured):
        return answer.Answer(answer.NONE, f"{none} faster")
    has_pairs = max(one.pairs for one in measured) >= PROOF_PASSES
    remedy = ("use more passes" if has_pairs or not _provable(measured)
              else "--prove FILE measures the best in pairs")
    return answer.Answer(answer.CANNOT_TELL, f"{none} clearly faster", remedy=remedy)


def _less(alternative: Alternative) -> str:
    assert alternative.change is not None
    less = alternative.change.map(lambda share: -share)
    covered = alternative.covered
    measured = "" if covered > ALL else f", {100 * covered:.0f} % of it measured"
    return (f"{alternative.name}: {answer.interval_text(less, percent=True)} less communication "
            f"time{measured}")


def _step(alternative: Alternative) -> str:
    if alternative.exposed is None:
        return "the record has no whole span"
    return (f"the recorded span shortens by 0 (all communication hidden) to "
            f"{three_digits(-100 * alternative.exposed)} % (none)")


def _tables(result: WhatIf) -> Iterator[Table]:
    if not result.time_s:
        return
    env = " ".join(f"{name}={value}" for name, value in result.env)
    present = f", present: {env}" if env else ""
    table = answer.plain_table(
        "recorded communication of the mean rank, "
        f"{format_seconds(result.time_s)}{span_text(result.span_s)}{present}", (
            Column("alternative", "alternative"),
            Column("time", "time", Show.MS, "ms", "predicted communication", "less"),
            Column("change", "change", Show.PERCENT, "%", "of the recorded time", "less"),
            Column("interval", "95 % CI", Show.PERCENT, "%", optional=True),
            Column("span", "span", Show.PERCENT, "%",
                   "change of the span, if no communication is hidden, and if all is",
                   optional=True),
            Column("pairs", "pairs", Show.COUNT, meaning="passes or launches with both",
                   optional=True),
            Column("covered", "measured", Show.WHOLE_PERCENT, "%",
                   "measured share of the time of the calls that change"),
            Column("verdict", "gain"), Column("missing", "missing", optional=True)),
        (Row((one.name, one.time_s, one.change.value if one.change else None,
              answer.range_of(one.change),
              None if one.exposed is None else Range(*sorted((one.exposed, 0.0))),
              one.pairs or None, one.covered, one.verdict, one.missing or None))
         for one in result.alternatives))
    left_out = f"{plural(result.untimed, 'call')} without times left out."
    yield replace(table, notes=tuple(
        Line(text, "quiet") for text in (ASSUMED, left_out * bool(result.untimed)) if text))


def _provable(found: Iterable[Alternative]) -> list[tuple[float, Alternative]]:
    """Return the alternatives that a sweep can measure and that may be faster, by their change."""
    return [(one.change.value, one) for one in found
            if one.what in (SETTING, BALANCE) and one.change and one.verdict != SLOWER]


def proof_of(record: TrafficRecord, result: WhatIf) -> answer.Proof:
    """Return the sweep of the best alternative that a sweep can measure.

    Raises UsageError if none is measured that may be faster."""
    able = _provable(result.alternatives)
    if not able:
        raise UsageError("--prove: no setting that is measured may be faster; give backend or env "
                         "of the sweep several values (hpcbench gen-config --from) and run it")
    _, best = min(able, key=lambda one: one[0])
    calls = [record.signatures[index] for index in best.signatures]
    if best.what == BALANCE:
        calls = [replace(one, splits_in=None, splits_out=None, bytes=size)
                 for one in calls for size in even_sizes(one)]
    blocks = sweep_of(replace(record, signatures=tuple(calls)))["benchmarks"]
    return answer.Proof(TOPIC.name, best.name, {
        "name": "prove", "measure": {"passes": PROOF_PASSES, "iterations": PROOF_CALLS},
        "benchmarks": [
            block for one in blocks for block in _in_pairs(one, best, result.env)]},
        record.world_size)


def _in_pairs(block: Mapping[str, Any], best: Alternative, env: Env) -> Iterator[dict[str, Any]]:
    backend = best.backend or block["backend"]
    if best.what == BALANCE or best.env == env:
        backends = dict.fromkeys((block["backend"], backend))
        yield {**block, "backend": [*backends], **_variables(env)}
        return
    yield {**block, **_variables(env)}
    yield {**block, "backend": backend, **_variables(best.env)}


def _variables(env: Env) -> dict[str, Any]:
    return {"env": {name: [value] for name, value in env}} if env else {}


TOPIC = answer.Topic("what-if", "what recorded communication would take otherwise", what_if,
                     _tables, lambda _: (), proof=proof_of)

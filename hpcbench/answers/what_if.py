"""What a recorded job's communication would take otherwise: its calls, as measured in other ways.

The time is that of the record's mean rank. Calls without lateness wait no longer than in isolation
(`answers.causes`). In another setting, of even parts, or on fewer nodes, isolated calls take a
ratio of what they take at present; only that part of the recorded time changes, and what recorded
calls take beyond isolation stays. The ratio is of sums over forms, each weighted by its recorded
calls: over the same passes, as `compare --by` has it, where both were measured in them (a gain is
then ``real``); else over each side's passes (Welch 1947), which cannot know what differs between
two runs (``predicted``).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    interval_text,
    plain_table,
    range_of,
)
from hpcbench.answers.causes import call_name, causes
from hpcbench.answers.compare import NEAR, SMALLEST
from hpcbench.config.dialects.traffic import form_of, sweep_of
from hpcbench.errors import UsageError
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.operations.traffic import CallForm, Signature, TrafficRecord
from hpcbench.plan.support import traits_of
from hpcbench.reduce.kind_facts import IsolatedCall
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.stack import counts
from hpcbench.statistics.order import Interval, Values, median, t_quantile, t_tail
from hpcbench.statistics.overlap import chance_of_mean, mean_interval
from hpcbench.units import format_seconds, grouped, plural
from hpcbench.views.table import Column, Line, Range, Row, Show, Table

LATENESS, SETTING, BALANCE, NODES = "lateness", "setting", "balance", "nodes"
REAL, PREDICTED, SLOWER, UNDECIDED = "real", "predicted", "slower", "undecided"
FEWEST = 3
"""Passes, or launches, of which a ratio has an interval."""
FALSE_SHARE = 0.05
"""Of all alternatives of a record together."""
PROOF_PASSES = 9
PRESENT = " as recorded"
"""Behind the name of a call that is measured otherwise only."""
ALL, LEAST_COVERED = 0.995, 0.5
"""Of the time of the calls that change: with less measured, nothing is named."""
ASSUMED = ("Assumed: waiting and contention stay, and so do calls that are not covered. The job "
           "gains less where computation hides communication.")

Env = tuple[tuple[str, str], ...]
PassKey = tuple[int, int, int]
"""Number of the run, launch, pass."""
PassTimes = Mapping[PassKey, float]
"""Median time of an isolated call in s, the mean of its ranks."""


@dataclass(frozen=True, slots=True)
class Alternative:
    """What the recorded communication would take otherwise.

    Attributes:
        name: what is otherwise, in words; ``what``: LATENESS, SETTING, BALANCE or NODES.
        time_s: of all recorded communication of the mean rank, predicted; None: not measured.
        change: of that time, as a share of the recorded one, below 0 where it is less; with its
            95 % interval where there are FEWEST passes.
        exposed: the same as a share of the recorded span, if nothing hides communication.
        pairs: passes, or launches, that measured both; 0: each side in its own.
        covered: share of the recorded time of the calls that change, for which both are measured.
        verdict: ``real``, ``predicted``, ``slower`` or ``undecided``.
        missing: what is not measured, or too little; else empty.
        backend, env: those of a setting; "" as recorded.
        signatures: indices of the calls that are covered.
    """

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
    last end, of which communication takes the share ``of_span``; both None where calls were lost
    or have no times. ``untimed``: calls of all ranks that have no time and are not measured.
    ``env``: variables of the present setting, if it was not measured without.
    """

    time_s: float
    span_s: float | None
    of_span: float | None
    untimed: int
    env: Env
    alternatives: tuple[Alternative, ...]
    answers: tuple[Answer, ...]


class Calls(NamedTuple):
    """Calls of one signature, of the mean rank: how many, their recorded time in s (0: unknown),
    their form with even parts and the sizes at which it stands for them: now, and balanced."""

    signature: int
    form: CallForm | None
    size_bytes: int
    balanced_bytes: int
    calls: float
    time_s: float


class Part(NamedTuple):
    """Isolated calls at present and otherwise, so many of each."""

    calls: float
    present: PassTimes
    other: PassTimes


class Ratio(NamedTuple):
    """How many times as long the other side takes: ``chance`` is its p-value against 1, ``pairs``
    the number of common passes or launches."""

    interval: Interval
    chance: float
    pairs: int


@dataclass(frozen=True, slots=True)
class Measured:
    """Isolated calls by form, environment and bytes, and the device that each ran on."""

    times: Mapping[tuple[CallForm, Env], Mapping[int, PassTimes]]
    devices: Mapping[tuple[CallForm, Env], str]

    def at(self, form: CallForm, env: Env, size_bytes: int) -> PassTimes | None:
        """Return the times at a size: between two that were measured, by their logarithms."""
        sizes = self.times.get((form, env), {})
        if size_bytes in sizes:
            return sizes[size_bytes]
        below = max((size for size in sizes if 0 < size < size_bytes), default=None)
        above = min((size for size in sizes if size > size_bytes), default=None)
        if below is None or above is None:
            return None
        share = math.log(size_bytes / below) / math.log(above / below)
        return {key: time_s ** (1 - share) * sizes[above][key] ** share
                for key, time_s in sizes[below].items() if key in sizes[above]}


@dataclass(frozen=True, slots=True)
class Job:
    """A record beside what was measured: what alternatives are made of."""

    record: TrafficRecord
    calls: tuple[Calls, ...]
    measured: Measured
    env: Env
    of_span: float | None

    @property
    def time_s(self) -> float:
        return sum(one.time_s for one in self.calls)

    def present(self, one: Calls) -> PassTimes | None:
        return None if one.form is None else self.measured.at(one.form, self.env, one.size_bytes)


def what_if(runs: Sequence[Run], options: TopicOptions) -> WhatIf:
    record = options.traffic
    assert record is not None  # the topic is for those who give one
    here = _of_most_nodes(runs)
    measured = _measured(enumerate(here))
    found = _recorded(record)
    span_s, of_span = _span(record)
    job = _with_unknown_times(Job(
        record, found, measured, _present_env(measured, found), of_span))
    made = [*_settings(job), *_balanced(job), *_nodes(job, runs, here)]
    judged = [_judged(one, ratio, sum(ratio is not None for _, ratio in made))
              for one, ratio in made]
    ordered = (_without_lateness(job, here, options), *sorted(
        judged, key=lambda one: one.change.value if one.change else math.inf))
    untimed = round(sum(one.calls for one in job.calls if not one.time_s) * len(record.order))
    return WhatIf(job.time_s, span_s, of_span, untimed, job.env, ordered,
                  tuple(_answers(job, ordered)))


def _recorded(record: TrafficRecord) -> tuple[Calls, ...]:
    """Return the calls of each signature; those without a duration take the mean of the others."""
    number, known, total_ns = (np.zeros(len(record.signatures)) for _ in range(3))
    for order in record.order:
        for index, duration in zip(order.signature, order.duration_ns, strict=True):
            number[index] += 1
            known[index] += duration is not None
            total_ns[index] += duration or 0
    ranks = max(len(record.order), 1)
    times_s = total_ns / 1e9 * number / np.maximum(known, 1) / ranks
    return tuple(Calls(index, _even_form(record, one), *_sizes(one),
                       float(number[index]) / ranks, float(times_s[index]))
                 for index, one in enumerate(record.signatures))


def _even_form(record: TrafficRecord, one: Signature) -> CallForm | None:
    form = form_of(record, replace(one, splits_in=None, splits_out=None))
    return form and replace(form, stride=form.stride or 1)


def _sizes(one: Signature) -> tuple[int, int]:
    """Return the bytes of the rank that moves most, and of the mean rank."""
    parts = [sum(row) for row in (*(one.splits_in or ()), *(one.splits_out or ())) if row]
    item = DTYPE_BYTES.get(one.dtype or "", 0)
    if not parts or not item:
        return one.bytes, one.bytes
    return max(parts) * item, round(sum(parts) / len(parts)) * item


def _span(record: TrafficRecord) -> tuple[float | None, float | None]:
    """Return the recorded span in s and the share of it in calls: means of ranks with all gaps."""
    spans, shares = [], []
    for order in record.order:
        if not order.gap_ns or None in order.gap_ns[1:] or None in order.duration_ns:
            continue
        durations = np.array(order.duration_ns, float)
        issued = np.cumsum(np.array([0, *order.gap_ns[1:]], float))
        spans.append(float((issued + durations).max()) / 1e9)
        shares.append(min(float(durations.sum()) / 1e9 / spans[-1], 1.0) if spans[-1] else 0.0)
    return (float(np.mean(spans)), float(np.mean(shares))) if spans else (None, None)


def _of_most_nodes(runs: Sequence[Run]) -> list[Run]:
    """Return the runs on the same nodes as the first of those on most nodes and ranks."""
    def place(run: Run) -> tuple[frozenset[str], int]:
        return frozenset(run.results.run.nodes), run.results.run.world_size

    most = max(runs, key=lambda run: (len(set(run.results.run.nodes)), run.results.run.world_size))
    return [run for run in runs if place(run) == place(most)]


def _measured(runs: Iterable[tuple[int, Run]]) -> Measured:
    times: dict[tuple[CallForm, Env], dict[int, dict[PassKey, float]]] = {}
    devices: dict[tuple[CallForm, Env], str] = {}
    for number, run in runs:
        for item in run.results.cases:
            for fact in run.facts(item, IsolatedCall) if item.status == "ok" else ():
                samples = run.samples.samples(item.case.case_id)
                form = (fact.form, _own_env(item))
                if samples is None or devices.setdefault(form, item.device) != item.device:
                    continue
                times.setdefault(form, {}).setdefault(fact.size_bytes, {}).update(
                    _pass_times(number, item, samples))
    return Measured(times, devices)


def _own_env(item: CaseResult) -> Env:
    """Return the variables of a case that do not follow from its backend."""
    selected = traits_of(item.case.backend).env
    return tuple(one for one in item.case.env if one not in selected)


def _pass_times(run: int, item: CaseResult, samples: CaseSamples) -> PassTimes:
    used = counts(samples.use) if samples.use is not None else np.ones(samples.launch.size, bool)
    each = (samples.end_ns - samples.start_ns).mean(axis=0) / (1e9 * item.case.batch)
    keys = grouped(((run, int(launch), int(number)), time_s) for launch, number, time_s in zip(
        samples.launch[used], samples.pass_index[used], each[used], strict=True))
    return {key: median(np.array(values)) for key, values in keys.items()}


def _present_env(measured: Measured, found: Iterable[Calls]) -> Env:
    """Return no variables where calls were measured so, else those of the first that were."""
    recorded = {one.form for one in found}
    envs = [env for form, env in measured.times if form in recorded]
    return () if not envs or () in envs else envs[0]


def _with_unknown_times(job: Job) -> Job:
    """Return the job with the isolated time of calls that have none recorded."""
    return replace(job, calls=tuple(
        one if one.time_s or (times := job.present(one)) is None else
        one._replace(time_s=one.calls * _mean(times)) for one in job.calls))


def _mean(times: PassTimes) -> float:
    """Return the geometric mean."""
    return math.exp(sum(map(math.log, times.values())) / len(times)) if times else 0.0


Made = tuple[Alternative, Ratio | None]


def _settings(job: Job) -> Iterator[Made]:
    """Yield each backend and environment that was measured and is not the present one."""
    backends = {one.form.backend for one in job.calls if one.form}
    seen = dict.fromkeys((form.backend, env) for form, env in job.measured.times)
    others = dict.fromkeys(
        ("" if backends == {backend} else backend, env) for backend, env in seen
        if env != job.env or backends != {backend})
    for backend, env in others:
        changed = [one for one in job.calls if one.time_s and (
            env != job.env or not one.form or one.form.backend != backend)]
        words = [f"backend {backend}"] if backend else []
        words += [f"{name}={value}" for name, value in env if (name, value) not in job.env]
        words += [f"{name} unset" for name, _ in job.env if name not in dict(env)]
        found = _made(job, Alternative(" ".join(words), SETTING, backend=backend, env=env), [
            (one, _in_setting(job, one, backend, env)) for one in changed])
        if found[0].signatures or found[0].missing.endswith(PRESENT):
            yield found


def _in_setting(job: Job, one: Calls, backend: str, env: Env) -> PassTimes | None:
    """Return the times in another setting; None if it ran on another device than at present."""
    if one.form is None:
        return None
    form, devices = replace(one.form, backend=backend or one.form.backend), job.measured.devices
    device, other = devices.get((one.form, job.env)), devices.get((form, env))
    return job.measured.at(form, env, one.size_bytes) if device in (None, other) else None


def _balanced(job: Job) -> Iterator[Made]:
    """Yield that all parts are of their mean size, where some are not."""
    uneven = [one for one in job.calls if one.size_bytes != one.balanced_bytes]
    if uneven:
        yield _made(job, Alternative("balanced sizes", BALANCE), [
            (one, job.present(one._replace(size_bytes=one.balanced_bytes))) for one in uneven])


def _nodes(job: Job, runs: Sequence[Run], here: Sequence[Run]) -> Iterator[Made]:
    """Yield the record on fewer nodes, for each set of them that was measured."""
    nodes, ranks = set(here[0].results.run.nodes), here[0].results.run.world_size
    fewer = grouped((tuple(sorted(nodes - set(run.results.run.nodes))), run) for run in runs
                    if set(run.results.run.nodes) < nodes)
    if len(nodes) > 1 and not fewer:
        yield Alternative("without a node", NODES,
                          missing="not measured: run the same sweep without that node"), None
    for left, same in fewer.items():
        size = same[0].results.run.world_size
        measured = _measured(enumerate(same, len(runs)))

        def times(one: Calls, size: int = size, found: Measured = measured) -> PassTimes | None:
            if one.form is None:
                return None
            ranks_then = size if one.form.ranks == ranks else one.form.ranks
            return found.at(replace(one.form, ranks=ranks_then), job.env, one.size_bytes)

        yield _made(job, Alternative(f"without {', '.join(left)}", NODES),
                    [(one, times(one)) for one in job.calls if one.time_s])


def _made(
    job: Job, one: Alternative, changed: Sequence[tuple[Calls, PassTimes | None]],
) -> Made:
    """Return an alternative of calls with their times in it, and the ratio of isolated times."""
    parts, missing, covered_s, signatures = [], [], 0.0, []
    for calls, other in changed:
        present = job.present(calls)
        if not other or not present:
            name = call_name(job.record, job.record.signatures[calls.signature])
            missing.append(name + PRESENT * (other is not None))
            continue
        parts.append(Part(calls.calls, present, other))
        signatures.append(calls.signature)
        covered_s += calls.time_s
    total_s = sum(calls.time_s for calls, _ in changed)
    covered = covered_s / total_s if total_s else float(not missing)
    lacking = f"not measured: {', '.join(missing[:2])}" if missing else ""
    lacking += f" and {len(missing) - 2} more" if len(missing) > 2 else ""
    one = replace(one, covered=covered, missing=lacking, signatures=tuple(signatures))
    if not parts:
        return one, None
    ratio = ratio_of(parts)
    isolated_s = sum(part.calls * _mean(part.present) for part in parts)
    share = min(isolated_s, covered_s) / job.time_s
    return _changed(job, one, ratio.interval.map(lambda value: share * (value - 1))), ratio


def _changed(job: Job, one: Alternative, change: Interval) -> Alternative:
    exposed = None if job.of_span is None else change.value * job.of_span
    return replace(one, time_s=job.time_s * (1 + change.value), change=change, exposed=exposed)


def ratio_of(parts: Sequence[Part]) -> Ratio:
    """Return how many times as long all parts take otherwise, in common passes if there are FEWEST.

    Of FEWEST launches or more each is one number, the mean of its passes.
    """
    present = [(part.calls, part.present) for part in parts]
    other = [(part.calls, part.other) for part in parts]
    common = _common([*present, *other])
    if len(common) >= FEWEST:
        logs = _by_launch(common, _logs(other, common) - _logs(present, common))
        return Ratio(mean_interval(logs).map(math.exp), chance_of_mean(logs), logs.size)
    sides = []
    for side in (present, other):
        keys = _common(side)
        sides.append(_by_launch(keys, _logs(side, keys)))
    if min(logs.size for logs in sides) >= FEWEST:
        return _welch(*sides)
    before_s, after_s = (sum(calls * _mean(times) for calls, times in side)
                         for side in (present, other))
    return Ratio(Interval(after_s / before_s), 1.0, 0)


_Side = Sequence[tuple[float, PassTimes]]
"""How many calls of each form, and their times."""


def _logs(side: _Side, keys: Sequence[PassKey]) -> Values:
    """Return the logarithm of the time of all calls in each pass."""
    logs = [math.log(sum(calls * times[key] for calls, times in side)) for key in keys]
    return np.array(logs, float)


def _common(side: _Side) -> list[PassKey]:
    return [key for key in side[0][1] if all(key in times for _, times in side)]


def _by_launch(keys: Sequence[PassKey], logs: Values) -> Values:
    launches = [*grouped((key[:2], value) for key, value in zip(keys, logs, strict=True)).values()]
    return logs if len(launches) < FEWEST else np.array([np.mean(one) for one in launches])


def _welch(present: Values, other: Values) -> Ratio:
    """Return the ratio of the means of two independent samples of logarithms."""
    parts = [float(logs.var(ddof=1)) / logs.size for logs in (present, other)]
    difference, variance = float(other.mean() - present.mean()), sum(parts)
    if not variance:
        return Ratio(Interval(*(math.exp(difference),) * 3), float(difference == 0), 0)
    degrees = variance ** 2 / sum(part ** 2 / (logs.size - 1) for part, logs in zip(
        parts, (present, other), strict=True))
    half = t_quantile(0.025, degrees) * math.sqrt(variance)
    return Ratio(Interval(difference, difference - half, difference + half).map(math.exp),
                 2 * t_tail(abs(difference) / math.sqrt(variance), degrees), 0)


def _judged(one: Alternative, ratio: Ratio | None, family: int) -> Alternative:
    """Return an alternative with its verdict; each counts as one test of a family of so many."""
    if ratio is None:
        return one
    if ratio.interval.low is None:
        return replace(one, missing=one.missing or f"fewer than {FEWEST} passes")
    return replace(one, pairs=ratio.pairs, verdict=verdict_of(
        ratio, family) if one.covered >= LEAST_COVERED else UNDECIDED)


def verdict_of(ratio: Ratio, family: int = 1) -> str:
    """Return what a ratio shows among so many; a change below SMALLEST, or near it, is none."""
    low, high = ratio.interval.ends
    if ratio.chance * family > FALSE_SHARE:
        return UNDECIDED
    if ratio.interval.value <= 1 / (1 + SMALLEST) and high < 1 / (1 + NEAR):
        return REAL if ratio.pairs else PREDICTED
    return SLOWER if ratio.interval.value >= 1 + SMALLEST and low > 1 + NEAR else UNDECIDED


def _without_lateness(job: Job, here: Sequence[Run], options: TopicOptions) -> Alternative:
    """Return the record without the arrivals of its causes; their errors are independent."""
    one = Alternative("no lateness", LATENESS)
    known = {cause.signature: cause.arrival for cause in causes(here, options).forms
             if cause.arrival is not None}
    covered = [calls for calls in job.calls if calls.signature in known]
    if not covered or not job.time_s:
        return replace(one, missing="not measured: hpcbench run traffic.json")
    shares = [calls.time_s / job.time_s for calls in covered]
    arrivals = [known[calls.signature] for calls in covered]
    value = sum(share * one.value for share, one in zip(shares, arrivals, strict=True))
    below, above = (math.sqrt(sum((share * (one.ends[end] - one.value)) ** 2 for share, one in zip(
        shares, arrivals, strict=True))) for end in (0, 1))
    found = _changed(job, one, Interval(-value, -value - above, -value + below))
    is_gain = value >= SMALLEST and value - below > NEAR
    return replace(found, covered=sum(shares), signatures=tuple(one.signature for one in covered),
                   verdict=PREDICTED if is_gain else UNDECIDED)


def _answers(job: Job, found: Sequence[Alternative]) -> Iterator[Answer]:
    lateness, *others = found
    if not job.time_s:
        yield cannot_tell("what if", "the record has no durations, and none of its calls is "
                          "measured: hpcbench run traffic.json")
        return
    gains = [one for one in others if one.is_gain]
    for one in sorted(gains, key=lambda one: one.verdict != REAL)[:1]:
        proof = f", {one.pairs} pairs" if one.pairs else "; prove it with --prove FILE"
        yield Answer(CLEAR, f"gain {one.verdict}: {_less(one)}{proof}", (_step(one),))
    if lateness.is_gain:
        yield Answer(CLEAR, f"lateness: {_less(lateness)}", (_step(lateness),))
    if not gains:
        yield _no_gain([one for one in others if one.change])


def _no_gain(measured: Sequence[Alternative]) -> Answer:
    none = f"gain: none of {plural(len(measured), 'alternative')} is"
    if not measured:
        return cannot_tell("gain", "no alternative is measured; give backend or env of the sweep "
                           "several values (hpcbench gen-config --from)")
    if all(one.verdict == SLOWER for one in measured):
        return Answer(NONE, f"{none} faster")
    remedy = ("use more passes" if max(one.pairs for one in measured) >= PROOF_PASSES
              else "--prove FILE measures the best in pairs")
    return Answer(CANNOT_TELL, f"{none} clearly faster; {remedy}")


def _less(one: Alternative) -> str:
    assert one.change is not None
    less = one.change.map(lambda share: -share)
    covered = "" if one.covered > ALL else f", {100 * one.covered:.0f} % of it covered"
    return f"{one.name}: {interval_text(less, percent=True)} less communication time{covered}"


def _step(one: Alternative) -> str:
    if one.exposed is None:
        return "the record has no whole span"
    return (f"the recorded span shortens by 0 (all communication hidden) to "
            f"{-100 * one.exposed:.3g} % (none)")


def _tables(found: WhatIf) -> Iterator[Table]:
    if not found.time_s:
        return
    span = "" if found.span_s is None or found.of_span is None else (
        f": {100 * found.of_span:.0f} % of the span of {format_seconds(found.span_s)}")
    env = " ".join(f"{name}={value}" for name, value in found.env)
    present = f", present: {env}" if env else ""
    table = plain_table(
        f"recorded communication of the mean rank, {format_seconds(found.time_s)}{span}{present}", (
            Column("alternative", "alternative"),
            Column("time", "time", Show.MS, "ms", "predicted communication", "less"),
            Column("change", "change", Show.PERCENT, "%", "of the recorded time", "less"),
            Column("interval", "95 % CI", Show.PERCENT, "%", optional=True),
            Column("span", "span", Show.PERCENT, "%",
                   "change of the span, if no communication is hidden, and if all is",
                   optional=True),
            Column("pairs", "pairs", Show.COUNT, meaning="passes or launches with both",
                   optional=True),
            Column("covered", "covered", Show.WHOLE_PERCENT, "%",
                   "measured share of the time of the calls that change"),
            Column("verdict", "gain"), Column("missing", "missing", optional=True)),
        (Row((one.name, one.time_s, one.change.value if one.change else None,
              range_of(one.change),
              None if one.exposed is None else Range(*sorted((one.exposed, 0.0))),
              one.pairs or None, one.covered, one.verdict, one.missing or None))
         for one in found.alternatives))
    left_out = f"{plural(found.untimed, 'call')} without times left out."
    yield replace(table, notes=tuple(
        Line(text, "quiet") for text in (ASSUMED, left_out * bool(found.untimed)) if text))


TOPIC = Topic("what-if", "what recorded communication would take otherwise", what_if, _tables,
              lambda _: ())


def proof_of(record: TrafficRecord, found: WhatIf) -> tuple[Alternative, dict[str, Any]]:
    """Return the best alternative that a sweep can measure, and the sweep of it and the present.

    Raises UsageError if none is predicted to be faster.
    """
    able = [one for one in found.alternatives if one.what in (SETTING, BALANCE) and one.change
            and one.change.value < 0]
    if not able:
        raise UsageError("--prove: no setting that is measured is faster; give backend or env of "
                         "the sweep several values (hpcbench gen-config --from) and run it")
    best = min(able, key=lambda one: one.change.value if one.change else 0.0)
    calls = [record.signatures[index] for index in best.signatures]
    if best.what == BALANCE:
        calls = [replace(one, splits_in=None, splits_out=None, bytes=size)
                 for one in calls for size in _sizes(one)]
    blocks = sweep_of(replace(record, signatures=tuple(calls)))["benchmarks"]
    return best, {"name": "prove", "measure": {"passes": PROOF_PASSES}, "benchmarks": [
        block for one in blocks for block in _in_pairs(one, best, found.env)]}


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

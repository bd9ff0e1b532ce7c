"""Calls that a job recorded, and the same calls as they were measured: alone, pass by pass.

Two sides are compared as sums over forms, each weighted by its recorded calls: over the same passes
where both were measured in them, else over each side's passes (Welch 1947)."""

from __future__ import annotations

import math
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.answers.answer import Run
from hpcbench.interop.dialects.traffic import form_of
from hpcbench.operations.collectives import DTYPE_BYTES
from hpcbench.operations.traffic import CallForm, Signature, TrafficRecord
from hpcbench.plan.support import traits_of
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import IsolatedCall
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.stack import counts
from hpcbench.statistics.hypothesis_tests import shifts_in_launches
from hpcbench.statistics.order import Interval, Values, median, t_quantile, t_tail
from hpcbench.units import format_seconds, grouped

FEWEST = 3
"""The fewest passes, or launches, that give a ratio an interval."""

Env = tuple[tuple[str, str], ...]
PassKey = tuple[int, int, int]
"""Number of the run, launch, pass."""
PassTimes = Mapping[PassKey, float]
"""Median time of an isolated call in s, the mean of its ranks."""


class RecordedCalls(NamedTuple):
    """Calls of one signature by the mean rank: their number, recorded time in s (0: unknown), form
    with even parts, and the sizes in bytes at which it represents them: now, and balanced."""

    signature: int
    form: CallForm | None
    size_bytes: int
    balanced_bytes: int
    calls: float
    time_s: float


@dataclass(frozen=True, slots=True)
class IsolatedTimes:
    """Isolated calls by form, environment and bytes, and the device that each ran on."""

    times: Mapping[tuple[CallForm, Env], Mapping[int, PassTimes]]
    devices: Mapping[tuple[CallForm, Env], str]

    def at(self, form: CallForm, env: Env, size_bytes: int) -> PassTimes | None:
        return self.times.get((form, env), {}).get(size_bytes)

    def between(self, form: CallForm, env: Env, size_bytes: int) -> PassTimes | None:
        """Return the times at a size between measured ones, interpolated in logarithms."""
        sizes = self.times.get((form, env), {})
        below = max((size for size in sizes if 0 < size < size_bytes), default=None)
        above = min((size for size in sizes if size > size_bytes), default=None)
        if below is None or above is None:
            return None
        share = math.log(size_bytes / below) / math.log(above / below)
        return {key: time_s ** (1 - share) * sizes[above][key] ** share
                for key, time_s in sizes[below].items() if key in sizes[above]}


@dataclass(frozen=True, slots=True)
class RecordedJob:
    """A record beside the measurements of its calls.

    ``env``: variables of the present setting: none if any calls were measured without, else those
    of the first measured ones. ``proofs``: numbers of runs whose cases all have a given number of
    iterations: with auto one side may have few calls, soon after its workers start. ``span_s``:
    from the mean rank's first issue to its last end, ``of_span``: the share of it in calls; None
    where calls were lost or have no times."""

    record: TrafficRecord
    calls: tuple[RecordedCalls, ...]
    measured: IsolatedTimes
    env: Env
    proofs: frozenset[int]
    span_s: float | None
    of_span: float | None

    @property
    def time_s(self) -> float:
        return sum(one.time_s for one in self.calls)

    @property
    def untimed(self) -> int:
        """Return how many calls of all ranks have no time and are not measured."""
        return round(sum(one.calls for one in self.calls if not one.time_s)
                     * len(self.record.order))

    def present(self, one: RecordedCalls) -> PassTimes | None:
        """Return the isolated times of ``one`` at its size, in the present setting."""
        return None if one.form is None else self.measured.at(one.form, self.env, one.size_bytes)

    def between(self, calls: RecordedCalls, size_bytes: int) -> PassTimes | None:
        """Return the isolated times at another size, interpolated if it was not measured."""
        if calls.form is None:
            return None
        return self.present(calls._replace(size_bytes=size_bytes)) or self.measured.between(
            calls.form, self.env, size_bytes)


def recorded_job(record: TrafficRecord, runs: Sequence[Run]) -> RecordedJob:
    """Return a record beside runs. Calls without a recorded time have their isolated one."""
    measured, calls = isolated_times(enumerate(runs)), _recorded(record)
    proofs = frozenset(number for number, run in enumerate(runs) if all(
        item.case.is_fixed for item in run.results.cases if item.status == "ok"))
    return _with_unknown_times(RecordedJob(
        record, calls, measured, _present_env(measured, calls), proofs, *span_of(record)))


def _recorded(record: TrafficRecord) -> tuple[RecordedCalls, ...]:
    """Return the calls of each signature; those without a duration take the mean of the others."""
    number, measured, total_ns = (np.zeros(len(record.signatures)) for _ in range(3))
    for order in record.order:
        for index, duration in zip(order.signature, order.duration_ns, strict=True):
            number[index] += 1
            measured[index] += duration is not None
            total_ns[index] += duration or 0
    ranks = max(len(record.order), 1)
    times_s = total_ns / 1e9 * number / np.maximum(measured, 1) / ranks
    return tuple(RecordedCalls(index, _even_form(record, one), *even_sizes(one),
                       float(number[index]) / ranks, float(times_s[index]))
                 for index, one in enumerate(record.signatures))


def _even_form(record: TrafficRecord, one: Signature) -> CallForm | None:
    form = form_of(record, replace(
        one, splits_in=None, splits_out=None, elements_in=(), elements_out=()))
    return form and replace(form, stride=form.stride or 1)


def even_sizes(signature: Signature) -> tuple[int, int]:
    """Return the bytes of the rank that moves most, and of the mean rank."""
    rows = (*(signature.splits_in or ()), *(signature.splits_out or ()))
    parts = [sum(row) for row in rows if row]
    item = DTYPE_BYTES.get(signature.dtype or "", 0)
    if not parts or not item:
        return signature.bytes, signature.bytes
    return max(parts) * item, round(sum(parts) / len(parts)) * item


def span_of(record: TrafficRecord) -> tuple[float | None, float | None]:
    """Return the recorded span in s, and the share of it in calls: their time over it, both
    means of the ranks with all gaps. Calls at once count each, as records do not tell when an
    issued call begins; at most 1."""
    spans_s, calls_s = [], []
    for order in record.order:
        if not order.gap_ns or None in order.gap_ns[1:] or None in order.duration_ns:
            continue
        durations = np.array(order.duration_ns, float)
        issued = np.cumsum(np.array([0, *order.gap_ns[1:]], float))
        spans_s.append(float((issued + durations).max()) / 1e9)
        calls_s.append(float(durations.sum()) / 1e9)
    if not spans_s:
        return None, None
    span_s = float(np.mean(spans_s))
    return span_s, min(float(np.mean(calls_s)) / span_s, 1.0) if span_s else 0.0


def span_text(span_s: float | None) -> str:
    """Return `` in the mean rank's span of 176 ms``; "" where that is not known."""
    return "" if span_s is None else f" in the mean rank's span of {format_seconds(span_s)}"


def exposed_text(of_span: float | None) -> str:
    """Return the most that may be exposed, and how to measure it; "" without a span.

    A record has no compute, so it does not tell what of its communication was hidden."""
    return "" if of_span is None else (
        f"exposed communication is not known from records: at most {100 * of_span:.0f} % of the "
        "span, by the sum of the mean rank's calls, those of the start included unless "
        "import --skip-first N left them out; to measure it, run a training with "
        "communication: [on, off]")


def of_most_nodes(runs: Sequence[Run]) -> list[Run]:
    """Return the runs on the same nodes as the first of those on most nodes and ranks."""
    def place(run: Run) -> tuple[frozenset[str], int]:
        return frozenset(run.results.run.nodes), run.results.run.world_size

    most = max(runs, key=lambda run: (len(set(run.results.run.nodes)), run.results.run.world_size))
    return [run for run in runs if place(run) == place(most)]


def isolated_times(runs: Iterable[tuple[int, Run]]) -> IsolatedTimes:
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
    return IsolatedTimes(times, devices)


def _own_env(item: CaseResult) -> Env:
    """Return the variables of a case that do not follow from its backend."""
    selected = traits_of(item.case.backend).env
    return tuple(one for one in item.case.env if one not in selected)


def counted(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return which samples are in the statistics; all where that is not recorded."""
    return counts(samples.use) if samples.use is not None else np.ones(samples.launch.size, bool)


def call_seconds(item: CaseResult, samples: CaseSamples) -> Values:
    """Return the time of a call in each sample, (rank, sample)."""
    return (samples.end_ns - samples.start_ns) / (1e9 * item.case.batch)


def _pass_times(run: int, item: CaseResult, samples: CaseSamples) -> PassTimes:
    used, each = counted(samples), call_seconds(item, samples).mean(axis=0)
    keys = grouped(((run, int(launch), int(number)), time_s) for launch, number, time_s in zip(
        samples.launch[used], samples.pass_index[used], each[used], strict=True))
    medians = {key: median(np.array(values)) for key, values in keys.items()}
    return {key: time_s for key, time_s in medians.items() if time_s > 0}


def _present_env(measured: IsolatedTimes, found: Iterable[RecordedCalls]) -> Env:
    recorded = {one.form for one in found}
    envs = [env for form, env in measured.times if form in recorded]
    return () if not envs or () in envs else envs[0]


def _with_unknown_times(job: RecordedJob) -> RecordedJob:
    """Return the job with the isolated time of calls that have none recorded."""
    return replace(job, calls=tuple(
        one if one.time_s or (times := job.present(one)) is None else
        one._replace(time_s=one.calls * mean_time(times)) for one in job.calls))


def mean_time(times: PassTimes) -> float:
    """Return the geometric mean over passes in s; 0 without any."""
    return math.exp(sum(map(math.log, times.values())) / len(times)) if times else 0.0


class ComparedCalls(NamedTuple):
    """The number of calls, and their isolated times at present and otherwise."""

    calls: float
    present: PassTimes
    other: PassTimes


class Ratio(NamedTuple):
    """How many times as long the other side takes: ``chance`` is its p-value against 1, ``pairs``
    the number of common passes or launches; ``is_proof``: they are of `RecordedJob.proofs`."""

    interval: Interval
    chance: float
    pairs: int = 0
    is_proof: bool = False


def ratio_of(parts: Sequence[ComparedCalls], proofs: Container[int]) -> Ratio:
    """Return how many times as long all parts take otherwise, in common passes if there are FEWEST,
    those of ``proofs`` first.

    Common passes are counted as in `shifts_in_launches`; else from FEWEST launches on each is one
    number, the mean of its passes."""
    present = [(part.calls, part.present) for part in parts]
    other = [(part.calls, part.other) for part in parts]
    every = _common([*present, *other])
    proving = [key for key in every if key[0] in proofs]
    for common, is_proof in ((proving, True), (every, False)):
        if len(common) >= FEWEST:
            logs = _logs(other, common) - _logs(present, common)
            (shift,) = shifts_in_launches([_of_launches(common, logs)])
            return Ratio(shift.interval.map(math.exp), shift.chance, shift.n, is_proof)
    sides = []
    for side in (present, other):
        keys = _common(side)
        sides.append(_by_launch(keys, _logs(side, keys)))
    if min(logs.size for logs in sides) >= FEWEST:
        return _welch(*sides)
    before_s, after_s = (sum(calls * mean_time(times) for calls, times in side)
                         for side in (present, other))
    return Ratio(Interval(after_s / before_s), 1.0)


_Side = Sequence[tuple[float, PassTimes]]
"""How many calls of each form, and their times."""


def _logs(side: _Side, keys: Sequence[PassKey]) -> Values:
    """Return the logarithm of the time of all calls in each pass."""
    logs = [math.log(sum(calls * times[key] for calls, times in side)) for key in keys]
    return np.array(logs, float)


def _common(side: _Side) -> list[PassKey]:
    return [key for key in side[0][1] if all(key in times for _, times in side)]


def _of_launches(keys: Sequence[PassKey], logs: Values) -> list[Values]:
    return [np.array(one) for one in grouped(
        (key[:2], value) for key, value in zip(keys, logs, strict=True)).values()]


def _by_launch(keys: Sequence[PassKey], logs: Values) -> Values:
    launches = _of_launches(keys, logs)
    return logs if len(launches) < FEWEST else np.array([one.mean() for one in launches])


def _welch(present: Values, other: Values) -> Ratio:
    """Return the ratio of the means of two independent samples of logarithms."""
    parts = [float(logs.var(ddof=1)) / logs.size for logs in (present, other)]
    difference, variance = float(other.mean() - present.mean()), sum(parts)
    if not variance:
        return Ratio(Interval(*(math.exp(difference),) * 3), float(difference == 0))
    degrees = variance ** 2 / sum(part ** 2 / (logs.size - 1) for part, logs in zip(
        parts, (present, other), strict=True))
    half = t_quantile(0.025, degrees) * math.sqrt(variance)
    return Ratio(Interval(difference, difference - half, difference + half).map(math.exp),
                 2 * t_tail(abs(difference) / math.sqrt(variance), degrees))

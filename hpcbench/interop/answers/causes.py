"""Why a job's communication was slow: its recorded calls beside the same calls, isolated.

The transfer of a recorded call is the least duration of its ranks; the others waited for the time
that they took longer. The isolated calls are divided alike and subtracted. So a recorded call is

    transfer in isolation + arrival (waiting beyond that) + contention (transfer beyond that)

as shares of the ranks' mean duration. Intervals are percentiles of means of resampled calls (Efron
1979), of both sides, as wide as the dependence of calls asks for. They do not cover differences
between two runs of a machine."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbench.answers.answer import (
    CLEAR,
    MOST_NAMED,
    Answer,
    Run,
    Topic,
    TopicOptions,
    cannot_tell,
    plain_table,
    range_of,
)
from hpcbench.interop.answers.isolated_calls import (
    call_seconds,
    counted,
    exposed_text,
    span_of,
    span_text,
)
from hpcbench.interop.dialects import traffic
from hpcbench.operations.traffic import Signature, TrafficRecord, form_id
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import IsolatedCall, IsolatedForm
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.interval import stretch_of_mean
from hpcbench.statistics.order import Interval
from hpcbench.units import grouped, rank_list, three_digits, with_sizes
from hpcbench.views.table import Column, Line, Row, Show, Table

TRANSFER, ARRIVAL, CONTENTION = "transfer", "arrival", "contention"
MIXED, INCONCLUSIVE = "mixed", "inconclusive"
MAIN, PART = 0.5, 0.25
"""The least share of the time of a cause that is named alone, and of one of several."""
TOO_WIDE = "intervals too wide: record more calls"
DRAWS = 1000
MOST_CALLS = 5000
"""More calls are thinned evenly to at most this many."""
LATE = 4.0
"""A late rank is last more often than equal ranks are, by this many standard deviations."""

Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CallTimes:
    """Times of calls in s, (call,) each: transfer, mean waiting, and how often each rank was last.
    """

    transfer_s: Times
    waiting_s: Times
    last: Mapping[int, int]


@dataclass(frozen=True, slots=True)
class CallCause:
    """The cause of the time that the calls of one form took.

    Attributes:
        form: the calls in words (`call_name`).
        calls: recorded ones; ``matched``: those with the durations of at least two ranks.
        size_bytes: of a call, as nccl-tests counts it.
        time_s: mean duration over ranks, summed over the matched calls.
        transfer_s, waiting_s: means of a recorded call.
        isolated_s: mean transfer of an isolated call; None without one.
        arrival, contention: shares of the time with 95 % intervals; None where not known.
        cause: ``transfer``, ``arrival``, ``contention``, ``mixed`` or ``inconclusive``, see
            `_verdict`.
        parts: the causes of ``mixed``; else none.
        late: ranks that arrive last more often than the others, where arrival is a cause or a part
            of `PART`: of two ranks one that is late by a transfer makes a third of the time.
        missing: why there is no cause; else empty.
        signature: index in the record's `signatures`."""

    form: str
    calls: int
    matched: int
    size_bytes: int
    time_s: float = 0.0
    transfer_s: float | None = None
    waiting_s: float | None = None
    isolated_s: float | None = None
    arrival: Interval | None = None
    contention: Interval | None = None
    cause: str = INCONCLUSIVE
    parts: tuple[str, ...] = ()
    late: tuple[int, ...] = ()
    missing: str = ""
    signature: int = -1

    @property
    def words(self) -> str:
        return f"{self.cause}: {' + '.join(self.parts)}" if self.parts else self.cause


@dataclass(frozen=True, slots=True)
class Causes:
    """The record of the topic; ``shares`` are of all recorded time, by cause; ``inconclusive`` is
    the time of the calls without a cause.

    ``span_s``: from the mean rank's first issue to its last end; ``of_span``: communication's share
    of it, the most that may be exposed; both None where calls were lost or have no times."""

    forms: tuple[CallCause, ...]
    shares: Mapping[str, float]
    span_s: float | None
    of_span: float | None
    answers: tuple[Answer, ...]


def causes(runs: Sequence[Run], options: TopicOptions) -> Causes:
    record = options.traffic
    assert record is not None  # the topic is for those who give one
    isolated = _isolated(runs)
    forms = tuple(_cause(record, index, calls, isolated)
                  for index, calls in enumerate(_recorded(record)))
    ordered = tuple(sorted(forms, key=lambda one: -one.time_s))
    shares, (span_s, of_span) = _shares(ordered), span_of(record)
    return Causes(ordered, shares, span_s, of_span, (_answer(
        record, ordered, shares, span_text(span_s), exposed_text(of_span)),))


def _recorded(record: TrafficRecord) -> list[CallTimes]:
    """Return the times of each signature's calls that have the durations of at least two ranks."""
    of_signatures: list[dict[int, dict[int, int]]] = [{} for _ in record.signatures]
    for order in record.order:
        for index, sequence, duration in zip(
                order.signature, order.sequence, order.duration_ns, strict=True):
            if duration is not None:
                of_signatures[index].setdefault(sequence, {})[order.rank] = duration
    return [_times(calls.values()) for calls in of_signatures]


def _times(calls: Iterable[Mapping[int, int]]) -> CallTimes:
    complete = [call for call in calls if len(call) > 1]
    transfer = np.array([min(call.values()) for call in complete], float)
    last = [min(call, key=call.__getitem__) for call in complete]
    return CallTimes(
        transfer / 1e9,
        np.array([sum(call.values()) / len(call)
                  for call in complete], float) / 1e9 - transfer / 1e9,
        {rank: last.count(rank) for rank in sorted({rank for call in complete for rank in call})})


_Isolated = Mapping[IsolatedCall | str, tuple[Run, CaseResult, tuple[int, ...]]]
"""Call, or `form_id` -> run, case and ranks of its measurement; no ranks: groups in rank order."""


def _isolated(runs: Sequence[Run]) -> _Isolated:
    """Return, by call, the case that isolates it: of several the last one that is ok, if any, with
    the fewest variables of its own."""
    cases = sorted(((run, item) for run in runs for item in run.results.cases),
                   key=lambda one: (one[1].status == "ok", -len(one[1].case.env)))
    return {**{fact: (run, item, ()) for run, item in cases
               for fact in run.facts(item, IsolatedCall)},
            **{fact.form_id: (run, item, fact.ranks) for run, item in cases
               for fact in run.facts(item, IsolatedForm)}}


def call_name(record: TrafficRecord, one: Signature) -> str:
    """Return the calls of a signature in words: ``all_reduce fp32 sum 64 KiB n=4``."""
    ranks = len(record.groups[one.group].ranks)
    words = (one.collective, one.dtype, one.operator, one.bytes and f"{one.bytes}B", f"n={ranks}")
    return with_sizes(" ".join(str(word) for word in words if word))


def _cause(
    record: TrafficRecord, index: int, calls: CallTimes,
    isolated: _Isolated,
) -> CallCause:
    signature = record.signatures[index]
    call = _measured_as(record, signature)
    name = call_name(record, signature)
    matched = calls.transfer_s.size
    time_s = float((calls.transfer_s + calls.waiting_s).sum())
    if not matched:
        return CallCause(name, signature.count, 0, signature.bytes,
                         missing="no durations of two ranks", signature=index)
    recorded = CallCause(name, signature.count, matched, signature.bytes, time_s,
                         float(calls.transfer_s.mean()), float(calls.waiting_s.mean()),
                         signature=index)
    if call not in isolated:
        return replace(recorded, missing=_unmeasured(record, index))
    run, item, ranks = isolated[call]
    if item.status != "ok":
        return replace(recorded, missing=f"{item.status}: {item.case.skip or item.reason}")
    samples = run.samples.samples(item.case.case_id)
    shape = (call.form.ranks, call.form.stride) if isinstance(call, IsolatedCall) else (
        len(ranks), 1)
    alone = None if samples is None else _alone(item, ranks, shape, samples)
    if alone is None or min(matched, alone.transfer_s.size) < traffic.FEWEST_CALLS:
        return replace(recorded, missing=f"fewer than {traffic.FEWEST_CALLS} calls to compare")
    return judged(recorded, calls, alone)


def _unmeasured(record: TrafficRecord, index: int) -> str:
    """Return how to measure a signature, or that it cannot be replayed."""
    signature = record.signatures[index]
    why = traffic.left_out(record, signature)
    if not why or (why == traffic.UNEVEN and signature.count >= traffic.FEWEST_CALLS):
        return "not measured: hpcbench run traffic.json"
    return "cannot be replayed" if why not in (traffic.UNEVEN, traffic.MESSAGES,
                                               traffic.SMALL) else (
        f"not measured: key signature {index} of a replay")


def _measured_as(record: TrafficRecord, one: Signature) -> IsolatedCall | str:
    """Return the key of a signature in `_Isolated`."""
    form = traffic.form_of(record, one)
    return form_id(record, one) if form is None else IsolatedCall(
        replace(form, stride=form.stride or 1), one.bytes)


def _alone(
    item: CaseResult, ranks: Sequence[int], shape: tuple[int, int], samples: CaseSamples,
) -> CallTimes:
    """Return the times of the isolated calls that count, each group's as a call of its own.

    ``shape``: ranks of a group, and their stride; ``ranks``: those of a single group, else none."""
    each = call_seconds(item, samples)[:, counted(samples)]
    each = each[[*ranks]] if ranks else each
    shaped = each.reshape(-1, *shape, each.shape[1])
    transfer = shaped.min(axis=1)
    return CallTimes(transfer.ravel(), (shaped.mean(axis=1) - transfer).ravel(), {})


def judged(recorded: CallCause, calls: CallTimes, alone: CallTimes) -> CallCause:
    """Return ``recorded`` with its cause and the shares of arrival and contention."""
    transfer, waiting = (_means(values, 1) for values in (calls.transfer_s, calls.waiting_s))
    time = transfer + waiting
    base, idle = (_means(values, 2) for values in (alone.transfer_s, alone.waiting_s))
    arrival, contention = (np.clip(part / time, 0, 1) for part in (waiting - idle, transfer - base))
    shares = {ARRIVAL: _share(arrival), CONTENTION: _share(contention),
              TRANSFER: _share(1 - arrival - contention)}
    cause, several = _verdict(shares)
    return replace(recorded, isolated_s=float(alone.transfer_s.mean()), arrival=shares[ARRIVAL],
                   contention=shares[CONTENTION], cause=cause,
                   missing=TOO_WIDE if cause == INCONCLUSIVE else "",
                   parts=several, late=_late(calls.last) if (
                       shares[ARRIVAL].ends[0] >= PART or ARRIVAL in several) else ())


def _means(values: Times, seed: int) -> Times:
    """Return the mean, then the means of DRAWS resamples; equal seeds draw the same calls. Calls
    that depend on one another count less."""
    step = -(-values.size // MOST_CALLS)
    some = values[::step]
    drawn = np.random.default_rng(seed).integers(some.size, size=(DRAWS, some.size))
    mean = some.mean()
    means = mean + stretch_of_mean(some) * (some[drawn].mean(axis=1) - mean)
    return np.concatenate([[mean], np.maximum(means, some.min())])


def _share(shares: Times) -> Interval:
    """Return the first share with the 95 % interval of the others."""
    low, high = np.quantile(shares[1:], (0.025, 0.975))
    return Interval(float(shares[0]), float(low), float(high))


def _verdict(shares: Mapping[str, Interval]) -> tuple[str, tuple[str, ...]]:
    """Return the cause, and the parts of a ``mixed`` one.

    A cause has an interval from `MAIN` on, parts have one from `PART` on, and then no other may
    reach across it. Else arrival and contention are both parts where their sum has an interval from
    `MAIN` on, and each is at least `PART` as estimated."""
    for name, share in shares.items():
        if share.ends[0] >= MAIN:
            return name, ()
    parts = tuple(name for name, share in shares.items() if share.ends[0] >= PART)
    if any(share.ends[0] < PART <= share.ends[1] for share in shares.values()):
        both = (ARRIVAL, CONTENTION)
        if shares[TRANSFER].ends[1] > 1 - MAIN or any(shares[one].value < PART for one in both):
            return INCONCLUSIVE, ()
        parts = tuple(name for name in shares if name in (*parts, *both))
    return (MIXED, parts) if len(parts) > 1 else (INCONCLUSIVE, ())


def _late(last: Mapping[int, int]) -> tuple[int, ...]:
    calls, share = sum(last.values()), 1 / len(last)
    most = calls * share + LATE * (calls * share * (1 - share)) ** 0.5
    return tuple(rank for rank, count in last.items() if count > most)


def _shares(forms: Sequence[CallCause]) -> Mapping[str, float]:
    """Return the share of all recorded time that each cause explains in calls that have one;
    ``inconclusive`` is all time of the others."""
    total = sum(one.time_s for one in forms)
    if not total:
        return {}
    explained = [one for one in forms if one.cause != INCONCLUSIVE]
    shares = {name: sum(one.time_s * getattr(one, name).value for one in explained) / total
              for name in (ARRIVAL, CONTENTION)}
    shares[TRANSFER] = sum(one.time_s for one in explained) / total - sum(shares.values())
    return {**shares, INCONCLUSIVE: max(1 - sum(shares.values()), 0.0)}


def _answer(
    record: TrafficRecord, forms: Sequence[CallCause], shares: Mapping[str, float], in_span: str,
    exposed: str,
) -> Answer:
    label = "communication"
    if len(record.order) < 2:
        return cannot_tell(label, "the record has fewer than two ranks")
    if not shares:
        return cannot_tell(label, "the record has no durations")
    ordered = sorted(shares.items(), key=lambda one: (one[0] == INCONCLUSIVE, -one[1]))
    if all(one.cause == INCONCLUSIVE for one in forms):
        reasons = dict.fromkeys(one.missing for one in forms if one.missing)
        return cannot_tell(label, "; ".join(reasons) or "too few calls")
    seconds = sum(one.time_s for one in forms)
    words = ", ".join(f"{100 * share:.0f} % {name}" for name, share in ordered if share >= 0.005)
    late = sorted({rank for one in forms for rank in one.late})
    by = f"; rank {rank_list(late)} arrives last" if late else ""
    return Answer(CLEAR, f"{label}: {words} of {three_digits(seconds)} s recorded{in_span}{by}", (
        *filter(None, (exposed,)),
        *(f"{one.form}: {one.missing or one.words}" for one in forms[:8])))


def _tables(result: Causes) -> Iterator[Table]:
    total = sum(one.time_s for one in result.forms) or 1.0
    if not result.forms:
        return
    table = plain_table("recorded calls against isolated ones", (
        Column("form", "call"), Column("calls", "calls", Show.COUNT),
        Column("share", "time", Show.PERCENT, "%",
               "of the recorded time of all calls: transfer and waiting"),
        Column("transfer", "transfer", Show.US, "us", "least duration of its ranks, mean of calls",
               "less"),
        Column("isolated", "isolated", Show.US, "us", "the same, measured alone", optional=True),
        Column("waiting", "waiting", Show.US, "us",
               "what a rank takes longer than the transfer, mean", "less"),
        Column("arrival", "arrival", Show.WHOLE_PERCENT, "%",
               "of its time: waiting for late ranks", optional=True),
        Column("arrival_interval", "95 % CI", Show.WHOLE_PERCENT, "%", optional=True),
        Column("contention", "contention", Show.WHOLE_PERCENT, "%",
               "of its time: transfer beyond that in isolation", optional=True),
        Column("contention_interval", "95 % CI", Show.WHOLE_PERCENT, "%", optional=True),
        Column("cause", "cause", meaning="of an interval from 50 % on; mixed: two from 25 % on, or "
               "arrival and contention, 50 % together and 25 % each as estimated"),
        Column("late", "late ranks", optional=True),
        Column("missing", "missing", optional=True, detail=True)), (Row((
            one.form, one.calls, one.time_s / total, one.transfer_s, one.isolated_s, one.waiting_s,
            one.arrival.value if one.arrival else None, range_of(one.arrival),
            one.contention.value if one.contention else None, range_of(one.contention),
            one.words, rank_list(one.late) if one.late else None,
            one.missing or None)) for one in result.forms))
    yield replace(table, notes=tuple(_notes(result)))


def _notes(result: Causes) -> Iterator[Line]:
    """Yield the most that may be exposed, and why calls have no cause."""
    if exposed := exposed_text(result.of_span):
        yield Line(f"  {exposed}")
    for why, forms in grouped((one.missing, one.form) for one in result.forms
                              if one.missing).items():
        rest = f" and {len(forms) - MOST_NAMED} more" if len(forms) > MOST_NAMED else ""
        yield Line(f"  no cause of {', '.join(forms[:MOST_NAMED])}{rest}: {why}")


TOPIC = Topic("causes", "why recorded communication is slow", causes, _tables, lambda _: ())

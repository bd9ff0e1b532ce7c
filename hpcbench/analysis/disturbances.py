"""Drift over the passes of a run, and their disturbances: clocks, other processes.

A series of pass medians drifts if it is steady and its interval excludes no change (`theil_sen`),
and it is significant among all series of the report (Holm). Where all cases drift together, a
single one is tested relative to that common drift.

Passes are matched with readings by the global clock. Counters count from the reading before a pass
to the one after it, so set-up, warm-ups and checks are in them. Clocks are those within the pass.

A disturbance counts as the slowdown that it alone would cause, on the rank that has most of it: a
core that is missing for a share w of the time makes work at most 1 / (1 - w) times as long. It is
named as a cause where the times of a case's passes follow it (`explained_rise`) by at least
`LEAST_EFFECT`, where it accounts for `EXPLAINS` of that, and where this holds among all
comparisons of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field, replace

import numpy as np
import numpy.typing as npt

from hpcbench.answers.answer import EXPLAINS, Run, percent_text
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import FALSE_ALARMS
from hpcbench.reduce.results import CaseResult, Results, TimeSeries
from hpcbench.reduce.usage import WIDEST
from hpcbench.statistics.hypothesis_tests import (
    MIN_PASSES,
    find_slowest,
    holm,
)
from hpcbench.statistics.order import Interval, median, medians, t_quantile, t_tail
from hpcbench.statistics.steady import TheilSen, theil_sen
from hpcbench.units import plural

ALARMS = FALSE_ALARMS / 4
"""Drift, conditions, and ranks that wait or have a low clock are four families: all of them
together name anything in at most 1 % of reports."""
FEWEST_TOGETHER = 3
"""Fewer cases have no common time series."""
Values = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Drifting:
    """How the time of a case, or of all of them, changes from the first pass to the last.

    Attributes:
        path, case_id, label: the results and the case; ``case_id`` is empty for all together.
        passes: how many there were; ``lasted_s`` from the first to the last, None if not known.
        change: relative to the median; ``low`` to ``high`` is its 99 % interval.
        tau: how steadily it rises or falls, 1 and -1 at most.
        chance: the probability of such a series without drift.
        is_clear: whether it is named."""

    path: str
    case_id: str
    label: str
    passes: int
    lasted_s: float | None
    change: float
    low: float
    high: float
    tau: float
    chance: float
    is_clear: bool

    @property
    def reach(self) -> float:
        """Return the largest change, rising or falling, that the interval leaves open."""
        return max(abs(self.low), abs(self.high))


def drifts(runs: Sequence[Run]) -> tuple[Drifting, ...]:
    """Return the drift of each case with enough passes, after that of all cases of its run."""
    series = [one for run in runs for one in _of_run(run)]
    holds = holm([found.chance for _, found in series], ALARMS)
    return tuple(replace(drifting, is_clear=significant and found.is_steady)
                 for (drifting, found), significant in zip(series, holds, strict=True))


def _of_run(run: Run) -> Iterator[tuple[Drifting, TheilSen]]:
    timed = [(item.case, item.timing.pass_medians_s) for item in run.results.cases
             if item.timing is not None]
    times = {case.case_id: np.array(medians, dtype=np.float64) for case, medians in timed
             if medians and all(medians)}
    labels = {case.case_id: case.label for case, _ in timed}
    beside = None
    if len(times) >= FEWEST_TOGETHER and len({one.size for one in times.values()}) == 1:
        common = medians(np.stack([one / median(one) for one in times.values()], axis=-1))
        for series in _series(run, "", f"all {len(times)} cases together", common):
            yield series
            beside = common if series[1].is_steady else None
    for case_id, values in times.items():
        yield from _series(run, case_id, labels[case_id],
                           values if beside is None else values / beside)


def _series(
    run: Run, case_id: str, label: str, values: Values,
) -> Iterator[tuple[Drifting, TheilSen]]:
    """Yield the line through a series, if it has enough values; ``lasted_s`` is of all passes."""
    slope = theil_sen(values, np.arange(values.size, dtype=np.float64))
    if slope is not None:
        yield Drifting(run.path, case_id, label, values.size, run.results.lasted_s,
                       slope.change.value, *slope.change.ends, slope.tau, slope.chance,
                       is_clear=False), slope


MOST_READ = 500_000
"""Ranks times passes: more are not analysed, as that would take minutes and memory."""
MOST_LOST = 0.99
"""A short pass may lose all ticks that were counted; no finite slowdown follows from that."""
Spans = npt.NDArray[np.int64]
CLOCK_SOURCES = (("GPU", "gpu", "sm_mhz", 1.0), ("CPU", "frequency", "mean_khz", 1e-3))
"""Device, table and column of its clock, and MHz of its unit; the first that was read counts."""


@dataclass(frozen=True, slots=True)
class PassReadings:
    """Times of a case's passes (pass,), and the readings in each; NaN where there are none.

    Attributes:
        spans_ns: begin and end, (pass, 2).
        clocks: median clock of each rank that read any, in MHz, (rank, pass).
        waits: share of a pass in which each rank's worker was ready and had no core.
        steal, others: share of all cores' time of each node that a hypervisor gave away, and that
            other processes than the workers used, (node, pass)."""

    item: CaseResult
    times_s: Values
    spans_ns: Spans
    clocks: Values
    waits: Values
    steal: Values
    others: Values


@dataclass(frozen=True, slots=True)
class RunReadings:
    """The readings in the passes of a run's cases; ``missing``: reading -> why there is none.

    ``clock_of`` is the device of the clocks, ``celsius`` the highest temperature of a GPU.
    ``wait_ranks``, ``clock_ranks``: the rank of each row; ``nodes``: the rank that read for each.
    """

    cases: tuple[PassReadings, ...] = ()
    clock_of: str = ""
    wait_ranks: tuple[int, ...] = ()
    clock_ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    celsius: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def readings(run: Run) -> RunReadings:
    """Return the readings in the passes of a run, where they can be matched with them."""
    results = run.results
    if why := _why_not(results):
        return RunReadings(missing=dict.fromkeys(("clocks", "waits", "cores"), why))
    clock_of, clocks, scale = next(
        ((name, series, scale) for name, table, column, scale in CLOCK_SOURCES
         if (series := run.samples.time_series(table, column))), ("", (), 1.0))
    waits = run.samples.time_series("process", "wait_ns")
    cores = [run.samples.time_series("cpu", f"{name}_ns")
             for name in ("user", "system", "idle", "steal")]
    used = run.samples.time_series("process", "cpu_ns")
    node_of = {one.rank: one.hostname for one in results.topology.ranks}
    of_nodes, in_mhz = _Cores(cores, used, node_of), [(one, scale) for one in clocks]
    cases = tuple(_case_readings(item, in_mhz, waits, of_nodes)
                  for item in results.cases if _is_matched(item))
    reasons = {name: why for one in results.telemetry for name, why in one.missing.items()}
    hottest = [int(one.values.max()) for one in run.samples.time_series("gpu", "celsius")]
    return RunReadings(cases, clock_of, _ranks(waits), _ranks(clocks), _ranks(cores[0]),
                max(hottest, default=None), {
        **({} if clocks else {"clocks": "; ".join(
            f"{name}: {reasons[table]}" for name, table, *_ in CLOCK_SOURCES if table in reasons)}),
        **({} if waits else {"waits": reasons.get("process.wait_ns", "")}),
        **({} if cores[0] else {"cores": reasons.get("cpu", "")})})


def _why_not(results: Results) -> str:
    if not results.telemetry:
        return "telemetry is off"
    matched = [item for item in results.cases if _is_matched(item)]
    if not matched:
        return "no telemetry matches the passes (resumed run?)"
    read = sum(len(_known_s(item)) * item.case.world_size for item in matched)
    return (f"{read} passes of ranks exceed the limit of {MOST_READ}" if read > MOST_READ
            else "")


def _known_s(item: CaseResult) -> list[float]:
    return [time_s for time_s in item.timing.pass_medians_s if time_s] if item.timing else []


def _is_matched(item: CaseResult) -> bool:
    """Return whether the case has a time for each span, so that they are of the same passes."""
    return item.usage is not None and 0 < len(item.usage.spans_ns) == len(_known_s(item))


def _ranks(time_series: Sequence[TimeSeries]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(series.rank for series in time_series))


@dataclass(frozen=True, slots=True)
class _Cores:
    """Time series of nodes' cores (user, system, idle, steal) and of workers; each rank's node."""

    cores: Sequence[Sequence[TimeSeries]]
    used: Sequence[TimeSeries]
    node_of: Mapping[int, str]

    def shares(self, spans_ns: Spans) -> tuple[Values, Values]:
        """Return the share that was stolen, and the one of other processes, each (node, pass)."""
        stolen, others = [], []
        for user, system, idle, steal in zip(*self.cores, strict=True):
            risen = [rises(series, spans_ns)[0] for series in (user, system, idle, steal)]
            total = np.where(sum(risen) > 0, sum(risen), np.nan)
            here = [series for series in self.used
                    if self.node_of.get(series.rank) == self.node_of.get(user.rank)]
            own = sum((rises(series, spans_ns)[0] for series in here), np.zeros(len(spans_ns)))
            stolen.append(np.minimum(risen[3] / total, MOST_LOST))
            others.append(np.maximum(risen[0] + risen[1] - own, 0) / total)
        return _stacked(stolen, spans_ns), _stacked(others, spans_ns)


def _case_readings(
    item: CaseResult, clocks: Sequence[tuple[TimeSeries, float]], waits: Sequence[TimeSeries],
    cores: _Cores,
) -> PassReadings:
    assert item.usage is not None
    spans_ns = np.array(item.usage.spans_ns, dtype=np.int64)
    order = np.argsort(spans_ns[:, 0], kind="stable")
    spans_ns = spans_ns[order]
    waited = []
    for series in waits:
        risen, bracket_ns = rises(series, spans_ns)
        waited.append(np.clip(risen / bracket_ns, 0, MOST_LOST))
    of_series = [medians_within(series, spans_ns) * scale for series, scale in clocks]
    steal, others = cores.shares(spans_ns)
    return PassReadings(item, np.array(_known_s(item)), spans_ns,
                        _stacked(of_series, spans_ns), _stacked(waited, spans_ns), steal, others)


def _stacked(rows: Sequence[Values], spans_ns: Spans) -> Values:
    return np.stack(rows) if rows else np.empty((0, len(spans_ns)))


def rises(series: TimeSeries, spans_ns: Spans) -> tuple[Values, Values]:
    """Return by how much a counter rises around each span, and the ns between the two readings.

    Both are NaN where no reading is before or behind the span, where they are too far apart, and
    where the counter began anew."""
    first = np.searchsorted(series.time_ns, spans_ns[:, 0], side="right") - 1
    last = np.searchsorted(series.time_ns, spans_ns[:, 1], side="left")
    inside = (first >= 0) & (last < series.time_ns.size)
    first, last = np.where(inside, first, 0), np.where(inside, last, 0)
    elapsed = (series.time_ns[last] - series.time_ns[first]).astype(np.float64)
    risen = (series.values[last] - series.values[first]).astype(np.float64)
    good = inside & (elapsed > 0) & (risen >= 0) & (
        elapsed <= WIDEST * (spans_ns[:, 1] - spans_ns[:, 0]))
    return np.where(good, risen, np.nan), np.where(good, elapsed, np.nan)


def medians_within(series: TimeSeries, spans_ns: Spans) -> Values:
    """Return the median of an instantaneous value within each span; NaN where none was read.

    A device that idles while a pass is set up has another clock then: most of a pass counts."""
    first = np.searchsorted(series.time_ns, spans_ns[:, 0], side="left")
    end = np.searchsorted(series.time_ns, spans_ns[:, 1], side="right")
    return np.array([np.median(series.values[begin:stop]) if stop > begin else np.nan
                     for begin, stop in zip(first, end, strict=True)])


LEAST_EFFECT = 0.03
LEAST_SHARE = 0.05
"""Other processes that use less of a node's cores are not named; nor a rank that waits less."""
CLOCKS, WAITS, STEAL = "clocks", "waits", "steal"


FEWEST_PASSES = 5
"""Fewer leave one or two degrees of freedom, with which nothing but a coincidence is clear."""
LEAST_RANGE = 0.01
"""A condition that changes by less over the passes explains nothing."""
_MOST = 50.0


@dataclass(frozen=True, slots=True)
class ExplainedRise:
    """How times follow a condition, given as the slowdown that it alone would cause. ``effect``:
    rise of the time from the least to the greatest slowdown, with its 99 % interval; ``share`` of
    the rise that the condition can explain, 1 at most; ``fit``: explained variance; ``chance``:
    p-value."""

    effect: Interval
    share: float
    fit: float
    chance: float


def explained_rise(times_s: Values, slowdowns: Values) -> ExplainedRise | None:
    """Return how times (pass,) follow slowdowns (pass,), 1 for none; None without enough data."""
    n = times_s.size
    if n < FEWEST_PASSES or np.ptp(np.log(slowdowns)) < LEAST_RANGE:
        return None
    x, y = np.log(slowdowns), np.log(times_s)
    span = float(np.ptp(x))
    x, y = x - x.mean(), y - y.mean()
    slope = float(x @ y / (x @ x))
    left = float(((y - slope * x) ** 2).sum())
    error = math.sqrt(max(left, 1e-18) / (n - 2) / float(x @ x))
    half = t_quantile(0.005, n - 2) * error
    whole = float(y @ y)
    effect = Interval(slope, slope - half, slope + half).map(
        lambda value: math.expm1(min(value * span, _MOST)))
    return ExplainedRise(effect, min(1.0, 1 / slope) if slope > 0 else 0.0,
                     1 - left / whole if whole > 0 else 0.0, t_tail(slope / error, n - 2))


@dataclass(frozen=True, slots=True)
class ConditionEffect:
    """How the times of a case's passes follow a condition.

    Attributes:
        path, case_id, label: the results and the case.
        condition: CLOCKS, WAITS or STEAL.
        row: the row of the readings that is worst in `EXPLAINS` of the disturbed passes; None where
            several take turns.
        passes, disturbed: all of them, and those with the condition past the middle of its range.
        samples: samples of the disturbed passes.
        least, greatest: ends of the condition: clocks relative to the highest, else shares.
        effect: by how much the time rises with it; ``low`` to ``high`` is its 99 % interval.
        share, fit: the shares of the rise, and of the variance, that the condition explains.
        chance: the probability of such times if they do not follow it.
        is_clear: whether the times follow it; ``is_cause`` whether it is also named as the cause.
    """

    path: str
    case_id: str
    label: str
    condition: str
    row: int | None
    passes: int
    disturbed: int
    samples: int
    least: float
    greatest: float
    effect: float
    low: float
    high: float
    share: float
    fit: float
    chance: float
    is_clear: bool = False
    is_cause: bool = False

    @property
    def text(self) -> str:
        return percent_text(self.effect, self.low, self.high)

    @property
    def passes_text(self) -> str:
        return (f"{self.disturbed} of {plural(self.passes, 'pass')} "
                f"({plural(self.samples, 'sample')})")


@dataclass(frozen=True, slots=True)
class LostShare:
    """The share of its speed that a rank or node lost over all passes, with its 99 % interval.

    ``row``: the rank, or node, as a row of the readings."""

    row: int
    value: float
    low: float
    high: float

    @property
    def text(self) -> str:
        return percent_text(self.value, self.low, self.high)


def following(read: Mapping[str, RunReadings]) -> tuple[ConditionEffect, ...]:
    """Return how cases follow each condition; ``read``: path -> its readings."""
    cases = [one for path, of_run in read.items() for case in of_run.cases
             for one in _following_of_case(path, case)]
    holds = holm([one.chance for one in cases], ALARMS)
    judged = []
    for reading, significant in zip(cases, holds, strict=True):
        clear = significant and reading.effect >= LEAST_EFFECT and reading.low > 0
        is_cause = clear and reading.share >= EXPLAINS
        judged.append(replace(reading, is_clear=clear, is_cause=is_cause))
    return tuple(judged)


def _following_of_case(path: str, case: PassReadings) -> Iterator[ConditionEffect]:
    for condition, values in ((CLOCKS, case.clocks), (WAITS, case.waits), (STEAL, case.steal)):
        lost = lower(values) if condition == CLOCKS else values
        whole = ~np.isnan(lost).any(axis=0)
        if not lost.size or not whole.any():
            continue
        lost, times_s = lost[:, whole], case.times_s[whole]
        worst = lost.max(axis=0)
        if (rise := explained_rise(times_s, 1 / (1 - worst))) is not None:
            yield _following(path, case, condition, lost, rise)


def lower(clocks: Values) -> Values:
    """Return by which share each clock is below the rank's highest one, (rank, pass)."""
    known = np.isfinite(clocks).any(axis=1, keepdims=True)
    tops = np.max(np.where(np.isnan(clocks), 0.0, clocks), axis=1, keepdims=True, initial=0.0)
    return 1 - clocks / np.where(known, tops, np.nan)


def _following(
    path: str, case: PassReadings, condition: str, lost: Values, rise: ExplainedRise,
) -> ConditionEffect:
    worst, item = lost.max(axis=0), case.item
    disturbed = worst > (worst.min() + worst.max()) / 2
    votes = np.bincount(lost[:, disturbed].argmax(axis=0), minlength=len(lost))
    row = int(votes.argmax()) if votes.max() >= EXPLAINS * votes.sum() else None
    ends = float(worst.min()), float(worst.max())
    least, greatest = (1 - ends[1], 1 - ends[0]) if condition == CLOCKS else ends
    n = item.statistics.n if item.statistics else 0
    return ConditionEffect(
        path, item.case.case_id, item.case.label, condition, row, worst.size,
        int(disturbed.sum()), round(n * float(disturbed.mean())), least, greatest,
        rise.effect.value, *rise.effect.ends, rise.share, rise.fit, rise.chance)


def waiting_rank(cases: Sequence[PassReadings]) -> LostShare | None:
    """Return the rank that waits for a core significantly longer than any other, by LEAST_SHARE.

    Ranks are compared by rounds, each of one pass of every case (`_by_round`)."""
    by_round = _by_round(cases, "waits")
    if by_round is None or len(by_round) < 2:
        return None
    worst = find_slowest(by_round, LEAST_SHARE)
    if worst.chance > ALARMS:
        return None
    return LostShare(worst.row, float(by_round[worst.row].mean()), *_ends(by_round[worst.row]))


def lowest_clock(cases: Sequence[PassReadings]) -> LostShare | None:
    """Return the rank whose clock is significantly LEAST_SHARE below any other, and the share."""
    by_round = _by_round(cases, "clocks")
    if by_round is None or len(by_round) < 2:
        return None
    middle = float(np.median(by_round))
    least = find_slowest(-by_round, LEAST_SHARE * middle)
    return LostShare(least.row, least.apart_s / middle, least.low_s / middle, least.high_s / middle
                 ) if least.chance <= ALARMS else None


def shares_of_nodes(cases: Sequence[PassReadings], name: str) -> tuple[LostShare, ...]:
    """Return the share ``others`` or ``steal`` of each node with an interval above LEAST_SHARE."""
    by_round = _by_round(cases, name)
    if by_round is None:
        return ()
    shares = (LostShare(row, float(values.mean()), *_ends(values))
              for row, values in enumerate(by_round))
    return tuple(one for one in shares if one.low >= LEAST_SHARE)


def _by_round(cases: Sequence[PassReadings], name: str) -> Values | None:
    """Return the means over cases, weighted by their time, (row, round); None for too few."""
    rounds = min((one.times_s.size for one in cases), default=0)
    if rounds < MIN_PASSES:
        return None
    values = np.stack([getattr(one, name)[:, :rounds] for one in cases])
    lasted = np.stack([np.diff(one.spans_ns, axis=1)[:rounds, 0] for one in cases])[:, None, :]
    weights = np.where(np.isnan(values), 0.0, lasted)
    total = weights.sum(axis=0)
    if not values.shape[1] or (total == 0).any():
        return None
    return np.asarray((np.nan_to_num(values) * weights).sum(axis=0) / total)


def _ends(values: Values) -> tuple[float, float]:
    """Return the 99 % interval of a mean over rounds."""
    half = t_quantile(0.005, values.size - 1) * float(values.std(ddof=1)) / math.sqrt(values.size)
    return max(0.0, float(values.mean()) - half), min(1.0, float(values.mean()) + half)

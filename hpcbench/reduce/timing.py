"""The statistics of an ok case. Samples of one launch share its conditions, so the interval over
several launches is one of their medians (`statistics.interval`). Passes of a launch have
conditions, too: where these, or dependent samples, leave no sound interval of samples, the unit is
the pass. Fewer than 8 passes do not show whether they differ: their interval covers their medians.
Leaving flagged samples out always moves a median a little, so two intervals must agree that it
moved: the new median lies outside the row's interval, and the row's outside the 99 % interval of
the samples left. By chance at most 1 % of cases are flagged (`benchmarks/flags.py`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbench.operations.arrival import TOGETHER
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce import arrival, fold, results
from hpcbench.reduce.comparison import LATE_START, Comparison, compared
from hpcbench.reduce.stack import Pass, PassKey, Use, has_flag, pass_slices
from hpcbench.statistics import interval as intervals
from hpcbench.statistics import steady
from hpcbench.statistics.hypothesis_tests import are_enough
from hpcbench.statistics.order import (
    Values,
    high_outliers,
    median,
    medians,
    percentiles,
    percentiles_if_enough,
    t_quantile,
)
from hpcbench.trace.schema import ARRIVAL, Flag
from hpcbench.units import grouped

CI_LEVEL = 0.95
SAMPLES, PASSES, LAUNCHES = "samples", "passes", "launches"
FEWEST_LAUNCHES = 6
"""Fewer values hold no interval of CI_LEVEL."""
FEWEST_PASSES = steady.FEWEST_RUNS
"""Fewer do not show whether they drift."""
SEEN_TO_DIFFER = 0.1
"""Eight passes and more that differ with this p-value are the unit. With 1 %, differences of a half
of the samples' spread went unseen, and 91 % of intervals held the median (simulated)."""
MOST_SPREAD = 2.0
"""An interval of few passes that reaches this factor to either side is no interval."""


@dataclass(frozen=True, slots=True)
class Precision:
    """An interval, its ``unit`` (SAMPLES, PASSES, LAUNCHES), and fields of `Statistics` and
    `Timing`."""

    low_s: float | None = None
    high_s: float | None = None
    reliable: bool = False
    unit: str = SAMPLES
    rank: int | None = None
    launch_low_s: float | None = None
    launch_high_s: float | None = None
    launch_level: float | None = None


def over_samples(interval: intervals.MedianInterval | None) -> Precision:
    if interval is None:
        return Precision()
    return Precision(interval.low, interval.high, interval.reliable, rank=interval.rank)


def over_launch_medians(median_s: float, medians_s: Sequence[float]) -> Precision:
    """Return the interval over launches and their range, widened to the median of all samples."""
    interval = intervals.over_launches(np.array(medians_s), CI_LEVEL)
    launch_range = Precision(unit=LAUNCHES, launch_low_s=interval.low, launch_high_s=interval.high,
                             launch_level=interval.level)
    if interval.rank is None:
        return launch_range
    low_s, high_s = _ends(median_s, medians_s, interval.rank)
    return Precision(
        low_s, high_s, True, LAUNCHES, interval.rank, interval.low, interval.high, interval.level)


def over_pass_medians(median_s: float, medians_s: Sequence[float]) -> Precision | None:
    """Return the interval over passes; None for too few, or passes that drift."""
    medians = np.array(medians_s)
    drift = steady.steady_drift(medians, np.arange(float(medians.size)))
    if drift is None or drift.significant:
        return None
    rank = intervals.over_launches(medians, CI_LEVEL).rank
    return None if rank is None else Precision(
        *_ends(median_s, medians_s, rank), True, PASSES, rank)


def over_few_passes(
    median_s: float, medians_s: Sequence[float], interval: intervals.MedianInterval,
) -> Precision:
    """Return the interval over samples, widened by 2 to 7 passes: of 6 and 7 by the range of their
    medians, of fewer by Student's interval of their logarithms. Unreliable if that is too wide."""
    unreliable = Precision(interval.low, interval.high, rank=interval.rank)
    if min(medians_s) <= 0:
        return unreliable
    logs = np.log(medians_s)
    middle, half = logs.mean(), np.ptp(logs) / 2
    if logs.size >= FEWEST_LAUNCHES:
        middle = logs.min() + half
    else:
        half = t_quantile((1 - CI_LEVEL) / 2, logs.size - 1) * logs.std(ddof=1) / logs.size ** 0.5
    if half > np.log(MOST_SPREAD):
        return unreliable
    low_s = min(interval.low, median_s, float(np.exp(middle - half)))
    high_s = max(interval.high, median_s, float(np.exp(middle + half)))
    unit = SAMPLES if (low_s, high_s) == (interval.low, interval.high) else PASSES
    return Precision(low_s, high_s, True, unit, interval.rank)


def _ends(median_s: float, medians_s: Sequence[float], rank: int) -> tuple[float, float]:
    ordered = sorted(medians_s)
    return min(ordered[rank - 1], median_s), max(ordered[-rank], median_s)


def precision_of(
    times_s: Sequence[Values], interval: intervals.MedianInterval | None,
    launch_medians_s: Sequence[float], *, repeats: bool,
) -> Precision:
    """Return how well the median is known; ``times_s`` are those of each pass. ``repeats``: the
    launches ran in the same processes."""
    median_s = median(np.concatenate(times_s))
    if len(launch_medians_s) > 1 and not repeats:
        return over_launch_medians(median_s, launch_medians_s)
    of_samples, medians_s = over_samples(interval), [median(part) for part in times_s if part.size]
    if interval is None or sum(part.size for part in times_s) < intervals.MIN_N_RELIABLE:
        return of_samples
    if len(medians_s) >= FEWEST_PASSES:
        alike = of_samples.reliable and not intervals.passes_differ(
            np.concatenate(times_s), [part.size for part in times_s], SEEN_TO_DIFFER)
        return of_samples if alike else over_pass_medians(median_s, medians_s) or of_samples
    if len(medians_s) < 2 or interval.reason not in ("", intervals.PASSES_DIFFER):
        return of_samples
    return over_few_passes(median_s, medians_s, interval)


MOST_LATE = 0.2
"""Share of samples that a rank may start late without being reported."""
LEAST_PUNCTUAL = 0.2
"""With fewer punctual samples, the time behind the last start decides instead of them."""
LEVEL = 0.99
WITHOUT_INTERVAL = 0.05
"""Share of the median that counts as known where a row has neither interval nor range."""
Chosen = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class Flagged:
    """Times (n,) of a row, which are ``late``, which have no flag (``plain``), lengths of
    passes."""

    times_s: Values
    late: Chosen
    plain: Chosen
    passes: Sequence[int]

    @property
    def late_share(self) -> float:
        return float(self.late.mean())


def changed(
    statistics: results.Statistics, samples: Flagged, last_in_s: float | None,
) -> dict[str, bool]:
    return {"late_starts": is_late(statistics, samples, last_in_s),
            "fragile": is_fragile(statistics, samples)}


def is_unsettled(statistics: results.Statistics, samples: Flagged) -> bool:
    """Return whether the later halves of passes have another median, or the interval is
    unreliable."""
    later = np.concatenate([np.arange(length) >= length // 2 for length in samples.passes])
    return not statistics.ci_reliable or is_moved(statistics, samples, later)


def is_moved(statistics: results.Statistics, samples: Flagged, left: Chosen) -> bool:
    """Return whether the median of the samples ``left`` (8 at least) differs beyond chance."""
    if not is_enough(left):
        return False
    edges = np.cumsum([0, *samples.passes])
    lengths = [int(left[begin:end].sum())
               for begin, end in zip(edges[:-1], edges[1:], strict=True)]
    if holds(statistics, median(samples.times_s[left])):
        return False
    interval = intervals.median_interval(samples.times_s[left], LEVEL, lengths)
    return interval is not None and not interval.low <= statistics.median_s <= interval.high


def is_enough(left: Chosen) -> bool:
    return intervals.median_ranks(int(left.sum()), LEVEL) is not None


def is_late(statistics: results.Statistics, samples: Flagged, last_in_s: float | None) -> bool:
    """Return whether late starts change the median. Where hardly any sample is punctual, the time
    behind the last start, ``last_in_s``, decides; without it they do."""
    if samples.late_share <= MOST_LATE:
        return False
    if 1 - samples.late_share >= LEAST_PUNCTUAL and is_enough(~samples.late):
        return is_moved(statistics, samples, ~samples.late)
    return last_in_s is None or not holds(statistics, last_in_s)


def is_fragile(statistics: results.Statistics, samples: Flagged) -> bool:
    """Return whether flagged samples change the median, or too few are unflagged."""
    if not is_enough(samples.plain):
        return samples.late_share <= MOST_LATE and not bool(samples.plain.all())
    return is_moved(statistics, samples, samples.plain)


def holds(statistics: results.Statistics, value_s: float) -> bool:
    """Return whether a median lies in the interval, the range of launches, or within 5 %."""
    low_s, high_s = statistics.ci_low_s, statistics.ci_high_s
    if low_s is None or high_s is None:
        low_s, high_s = statistics.launch_low_s, statistics.launch_high_s
    if low_s is None or high_s is None:
        return abs(value_s - statistics.median_s) <= WITHOUT_INTERVAL * statistics.median_s
    return low_s <= value_s <= high_s


CLEAR_LATENESS = 0.1
"""A rank that starts later than others matters from this share of the median sample on."""
Passes = Mapping[PassKey, Pass]


@dataclass(frozen=True, slots=True)
class Planned:
    """All planned passes; ``repeats``: the case's launches run in the same processes. ``arrives``:
    ranks enter late on purpose, or another case is compared with this one, where they do."""

    keys: Sequence[PassKey]
    repeats: bool
    arrives: bool = False


@dataclass(frozen=True, slots=True)
class Measured:
    """Statistics and timing of an ok case, and the `Use` of each sample."""

    statistics: results.Statistics
    timing: results.Timing
    use: npt.NDArray[np.int64]


def measured(
    case: Case, samples: results.CaseSamples, waits: fold.DurationExtremes, passes: Passes,
    common: fold.Edges | None, planned: Planned,
) -> Measured:
    """Return statistics and timing of an ok case. ``passes`` are the records of ``samples``;
    ``common`` the samples on the global clock, None if there is none."""
    folded = fold.fold_samples(case, samples, waits, common)
    run = dict(zip(sorted(passes), folded.passes, strict=True))
    counted, times_s = folded.counted, folded.times_s[folded.counted]
    launches = samples.launch[counted]
    launch_medians_s = tuple(
        median(times_s[launches == launch]) for launch in np.unique(launches))
    parts = folded.by_pass()
    interval = intervals.median_interval(times_s, CI_LEVEL, [part.size for part in parts])
    precise = precision_of(parts, interval, launch_medians_s, repeats=planned.repeats)
    of_all = order_statistics(times_s)
    statistics = _with_precision(of_all, precise)
    late, outlier = has_flag(samples, Flag.LATE_START)[counted], high_outliers(times_s)
    ramp_or_surplus = folded.has(Use.COUNTED_RAMP, Use.COUNTED_SURPLUS)[counted]
    plain = ~(late | outlier | ramp_or_surplus)
    flagged = Flagged(times_s, late, plain, [part.size for part in parts])
    unflagged = of_all if plain.all() else (
        order_statistics(times_s[plain]) if plain.any() else None)
    rank, share = _quickest(case, samples, waits, counted)
    last_in_s = None if common is None else _median_s(
        fold.last_in_ns(common), counted, case.batch)
    modes = steady.modes_around_median(times_s, interval)
    arrivals = _late_arrivals(case, samples, common, folded, planned)
    flags = {"two_modes": bool(modes), "missed_lateness": bool(
        arrivals and (arrivals.missed_share or 0) > MOST_LATE),
        **changed(statistics, flagged, last_in_s if case.arrival == TOGETHER else None)}
    return Measured(statistics, results.Timing(
        fold=folded.fold, calls=case.batch,
        n_warmup=int(has_flag(samples, Flag.WARMUP).sum()),
        n_ramp=int(folded.has(Use.RAMP, Use.COUNTED_RAMP).sum()),
        n_samples=samples.launch.size, n_checked=int(has_flag(samples, Flag.CHECKED).sum()),
        n_surplus=int(folded.has(Use.SURPLUS, Use.COUNTED_SURPLUS).sum()),
        n_late=int(late.sum()), n_outlier=int(outlier.sum()),
        unflagged_n=int(plain.sum()), unflagged_median_s=unflagged.median_s if unflagged else None,
        quality=_quality(folded, statistics, flags | _drifting(folded, statistics, flagged),
                         repeats=planned.repeats and len(launch_medians_s) > 1),
        stop_reasons=tuple(next(iter(records.values())).stop_reason
                           for _, records in sorted(passes.items())),
        **_opening(case, passes), last_in_s=last_in_s,
        local_max_s=_median_s(waits.longest_ns, counted, case.batch),
        imbalance_s=None if common is None else _median_s(fold.imbalance_ns(common), counted),
        enqueue_s=_median_s(samples.enqueue_ns.max(axis=0), counted, case.batch),
        device_s=_median_s(samples.device_ns.max(axis=0), counted, case.batch),
        clock_bound_s=None if common is None else common.bound_ns / 1e9,
        quickest_rank=rank, quickest_share=share, launch_medians_s=launch_medians_s,
        pass_medians_s=tuple(  # so that cases can be compared pass by pass
            median(folded.times_s[run[key]][counted[run[key]]]) if key in run else None
            for key in planned.keys),
        steps=_steps_of(samples, counted, [run.get(key) for key in planned.keys],
                        common.late_ns if common is not None and case.batch == 1 else None),
        all_count=case.is_fixed, unflagged=unflagged, ci_unit=precise.unit, ci_rank=precise.rank,
        launch_level=precise.launch_level, modes=modes,
        late_start=None if case.arrival != TOGETHER else _late_start(
            samples, folded, common, statistics.median_s), arrivals=arrivals), folded.use)


def _late_arrivals(
    case: Case, samples: results.CaseSamples, common: fold.Edges | None, folded: fold.Folded,
    planned: Planned,
) -> results.LateArrivals | None:
    if not planned.arrives or common is None or common.late_ns is None:
        return None
    entered = arrival.entries(samples, arrival.planned_ns(case, samples), common.late_ns)
    is_late = case.arrival != TOGETHER
    _, last_low_s, last_high_s = _with_interval(
        fold.last_in_ns(common), samples, folded, planned)
    own_by_rank_s = arrival.by_rank_s(samples, entered.punctual & folded.counted)
    own_s, low_s, high_s = _own_entry(samples, entered.punctual, own_by_rank_s, folded, planned)
    return results.LateArrivals(
        lateness_s=_median_s(entered.lateness_ns, folded.counted) if is_late else None,
        missed_share=float(entered.missed[folded.counted].mean()) if is_late else None,
        last_in_low_s=last_low_s, last_in_high_s=last_high_s,
        own_entry_s=own_s, own_entry_low_s=low_s, own_entry_high_s=high_s,
        own_by_rank_s=own_by_rank_s,
        late_by_rank_s=arrival.by_rank_s(samples, ~entered.punctual & folded.counted))


def _own_entry(
    samples: results.CaseSamples, punctual: npt.NDArray[np.bool_],
    by_rank_s: Sequence[float | None], folded: fold.Folded, planned: Planned,
) -> tuple[float | None, float | None, float | None]:
    """Return the mean over ranks of ``by_rank_s``, and ends as far from it as those of the median
    over samples; none if one is unreliable. Only ranks that are punctual in the same samples share
    an interval: of a late broadcast the root waits for nobody, the others for all of the delay."""
    medians_s = [time_s for time_s in by_rank_s if time_s is not None]
    if not medians_s:
        return None, None, None
    own_s = sum(medians_s) / len(medians_s)
    rows = grouped((punctual[row].tobytes(), row) for row, time_s in enumerate(by_rank_s)
                   if time_s is not None)
    below_s = above_s = 0.0
    for some in rows.values():
        use = np.where(punctual[some[0]], folded.use, Use.WARMUP)
        own_ns = (samples.end_ns - samples.start_ns)[some].mean(axis=0)
        middle_s, low_s, high_s = _with_interval(
            own_ns, samples, replace(folded, use=use), planned)
        if low_s is None or high_s is None:
            return own_s, None, None
        below_s += len(some) / len(medians_s) * (middle_s - low_s)
        above_s += len(some) / len(medians_s) * (high_s - middle_s)
    return own_s, own_s - below_s, own_s + above_s


def _with_interval(
    times_ns: fold.Times | npt.NDArray[np.float64], samples: results.CaseSamples,
    folded: fold.Folded, planned: Planned,
) -> tuple[float, float | None, float | None]:
    """Return the median of other times of the counted samples, and its interval if reliable."""
    other = replace(folded, times_s=np.asarray(times_ns / 1e9, dtype=np.float64))
    parts, times_s = other.by_pass(), other.times_s[other.counted]
    launches = samples.launch[other.counted]
    interval = intervals.median_interval(times_s, CI_LEVEL, [part.size for part in parts])
    precision = precision_of(parts, interval, [
        median(times_s[launches == one]) for one in np.unique(launches)], repeats=planned.repeats)
    ends = (precision.low_s, precision.high_s) if precision.reliable else (None, None)
    return median(times_s), *ends


def _late_start(
    samples: results.CaseSamples, folded: fold.Folded, common: fold.Edges | None, median_s: float,
) -> Comparison | None:
    if common is None or len(samples.ranks) == 1 or common.pass_late_ns is None:
        return None
    if not are_enough([part.size for part in folded.by_pass()]):
        return None
    return compared(LATE_START, samples.ranks, common.pass_late_ns / 1e9,
                    CLEAR_LATENESS * median_s)


def order_statistics(times_s: npt.NDArray[np.float64]) -> results.Statistics:
    ordered_s = np.sort(times_s)
    p25_s, p75_s = percentiles(ordered_s, (25, 75))
    p5_s, p95_s, p99_s = percentiles_if_enough(ordered_s, (5, 95, 99))
    return results.Statistics(
        n=ordered_s.size, min_s=float(ordered_s[0]), p5_s=p5_s, p25_s=p25_s,
        median_s=median(ordered_s), p75_s=p75_s, p95_s=p95_s, p99_s=p99_s,
        max_s=float(ordered_s[-1]))


def summarise(times_s: npt.NDArray[np.float64]) -> results.Statistics:
    interval = intervals.median_interval(times_s, CI_LEVEL)
    return _with_precision(order_statistics(times_s), over_samples(interval))


def _with_precision(statistics: results.Statistics, known: Precision) -> results.Statistics:
    return replace(statistics, ci_low_s=known.low_s, ci_high_s=known.high_s,
                   ci_reliable=known.reliable, launch_low_s=known.launch_low_s,
                   launch_high_s=known.launch_high_s)


def _quality(
    folded: fold.Folded, statistics: results.Statistics, flags: Mapping[str, bool], *,
    repeats: bool,
) -> tuple[str, ...]:
    applies = {
        **flags,
        "clock_unreliable": folded.clock_unreliable,
        "ci_unreliable": statistics.ci_low_s is not None and not statistics.ci_reliable,
        "repeats": repeats,
        "ramp": bool(folded.has(Use.COUNTED_RAMP).any()),
    }
    return tuple(flag for flag in results.QUALITIES if applies.get(flag))


def _drifting(
    folded: fold.Folded, statistics: results.Statistics, flagged: Flagged,
) -> dict[str, bool]:
    if not is_unsettled(statistics, flagged):
        return {}
    parts = folded.steady_by_pass()
    return {"trend": any(drift.significant for drift in map(steady.trend, parts) if drift),
            "change_point": any(map(steady.change_point, parts)), "unsteady": folded.unsteady}


def _opening(case: Case, passes: Passes) -> dict[str, float | None]:
    opened = [record for records in passes.values() for record in records.values()
              if record.communicator_ns >= 0]
    return {"first_call_s": _longest_s(  # not known where the first row is several calls
        int(record.samples.end_ns[0] - record.samples.start_ns[0]) for record in opened
        if case.batch == 1 or record.samples.flags[0] & Flag.SINGLE),
        "communicator_s": _longest_s(record.communicator_ns for record in opened)}


def _longest_s(durations_ns: Iterable[int]) -> float | None:
    longest_ns = max(durations_ns, default=None)
    return None if longest_ns is None else longest_ns / 1e9


def _median_s(times_ns: fold.Times, counted: npt.NDArray[np.bool_], calls: int = 1) -> float | None:
    measured_ns = times_ns[counted & (times_ns >= 0)]
    return median(measured_ns) / calls / 1e9 if measured_ns.size else None


def _quickest(
    case: Case, samples: results.CaseSamples, waits: fold.DurationExtremes,
    counted: npt.NDArray[np.bool_],
) -> tuple[int | None, float | None]:
    if case.workload.groups > 1 or len(samples.ranks) == 1 or case.arrival != TOGETHER:
        return None, None
    times = fold.times_quickest(samples, waits, counted)
    row = int(np.argmax(times))
    return samples.ranks[row], float(times[row] / counted.sum())


def _steps_of(
    samples: results.CaseSamples, counted: npt.NDArray[np.bool_], passes: Sequence[slice | None],
    late_ns: fold.Times | None,
) -> results.Steps | None:
    """Return the time of counted samples by phase; None without phases. Without ``late_ns``,
    (rank, sample), there are no arrivals."""
    phases_ns = {name: values[:, counted] for name, values in fold.durations(samples).items()}
    if not phases_ns:
        return None
    all_ns = fold.sample_durations_ns(samples)
    step_ns = all_ns[:, counted]
    other_ns = step_ns - np.asarray(sum(phases_ns.values()), dtype=np.int64)
    total_ns = int(step_ns.sum()) or 1
    return results.Steps(
        ranks=samples.ranks, step_s=_medians_s(step_ns), other_s=_medians_s(other_ns),
        other_share=int(other_ns.sum()) / total_ns,
        phases=tuple(results.Phase(name, int(times_ns.sum()) / total_ns, _medians_s(times_ns),
                           *_vote(np.max, times_ns, samples.ranks),
                           *_vote(np.min, times_ns, samples.ranks))
                     for name, times_ns in phases_ns.items()),
        pass_step_s=tuple(part and _medians_s(all_ns[:, part][:, counted[part]])
                          for part in passes),
        arrivals=() if late_ns is None else tuple(_arrivals(samples, late_ns, counted)))


def _arrivals(
    samples: results.CaseSamples, late_ns: fold.Times, counted: npt.NDArray[np.bool_]
) -> Iterator[results.Arrival]:
    """Yield which rank is last at every bucket; times in the exchange do not show it, as all leave
    together."""
    for name, values in samples.phases.items():
        if not name.startswith(ARRIVAL) or len(samples.ranks) == 1:
            continue
        arrived_ns = (late_ns + values)[:, counted]
        is_last = arrived_ns == arrived_ns.max(axis=0)
        row = int(np.argmax(is_last.mean(axis=1)))
        behind_ns = arrived_ns[row] - np.median(np.delete(arrived_ns, row, axis=0), axis=0)
        yield results.Arrival(
            bucket=int(name.removeprefix(ARRIVAL)), median_s=_medians_s(arrived_ns),
            last_rank=samples.ranks[row], last_share=float(is_last[row].mean()),
            behind_s=median(behind_ns[is_last[row]]) / 1e9,
            pass_median_s=tuple(_medians_s((late_ns + values)[:, part][:, counted[part]])
                                for part in pass_slices(samples)))


def _vote(
    extreme: Callable[..., fold.Times], times_ns: fold.Times, ranks: tuple[int, ...]
) -> tuple[int | None, float | None]:
    if len(ranks) == 1:
        return None, None
    shares = np.mean(times_ns == extreme(times_ns, axis=0), axis=1)
    row = int(np.argmax(shares))
    return ranks[row], float(shares[row])


def _medians_s(times_ns: fold.Times) -> tuple[float, ...]:
    return tuple((medians(times_ns) / 1e9).tolist())

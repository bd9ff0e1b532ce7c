"""The statistics of an ok case: from raw stamps to what its table row says."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case
from hpcbench.reduce import fold
from hpcbench.reduce.checks import single_calls
from hpcbench.reduce.comparison import LATE_START, Comparison, compared
from hpcbench.reduce.conclusions import Flagged, changed, is_unsettled
from hpcbench.reduce.precision import CI_LEVEL, Precision, over_samples, precision_of
from hpcbench.reduce.qualities import QUALITIES
from hpcbench.reduce.results import (
    Arrival,
    CaseSamples,
    Phase,
    Statistics,
    Steps,
    Timing,
)
from hpcbench.reduce.stack import Pass, PassKey, different_rows, has_flag, pass_slices
from hpcbench.reduce.use import Use
from hpcbench.statistics.interval import median_interval
from hpcbench.statistics.modes import modes_around_median
from hpcbench.statistics.order import (
    high_outliers,
    median,
    medians,
    percentiles,
    percentiles_if_enough,
)
from hpcbench.statistics.standing_out import are_enough
from hpcbench.statistics.steady import change_point, trend
from hpcbench.trace.schema import ARRIVAL, Flag

CLEAR_LATENESS = 0.1
"""A rank that starts later than others matters from this share of the median sample on."""
Passes = Mapping[PassKey, Pass]


@dataclass(frozen=True, slots=True)
class Planned:
    """The ``keys`` of all planned passes, also those that were not run.

    ``repeats``: the case's launches run in the same processes.
    """

    keys: Sequence[PassKey]
    repeats: bool


@dataclass(frozen=True, slots=True)
class Measured:
    """The statistics of an ok case, how they came about, and the `Use` of each sample."""

    statistics: Statistics
    timing: Timing
    use: npt.NDArray[np.int64]


def measured(
    case: Case, samples: CaseSamples, waits: fold.Waits, passes: Passes,
    common: fold.Edges | None, planned: Planned,
) -> Measured:
    """Return what an ok case adds up to.

    ``passes`` are the records that the samples were stacked from, each with a timed sample;
    ``common`` are the samples on the global clock, None if there is none.
    """
    folded = fold.fold_samples(case, samples, waits, common)
    run = dict(zip(sorted(passes), folded.passes, strict=True))
    counted, times_s = folded.counted, folded.times_s[folded.counted]
    launches = samples.launch[counted]
    launch_medians_s = tuple(
        median(times_s[launches == launch]) for launch in np.unique(launches))
    parts = folded.by_pass()
    interval = median_interval(times_s, CI_LEVEL, [part.size for part in parts])
    known = precision_of(parts, interval, launch_medians_s, repeats=planned.repeats)
    of_all = order_statistics(times_s)
    statistics = _with_precision(of_all, known)
    late, outlier = has_flag(samples, Flag.LATE_START)[counted], high_outliers(times_s)
    apart = folded.has(Use.COUNTED_RAMP, Use.COUNTED_SURPLUS)[counted]
    plain = ~(late | outlier | apart)
    flagged = Flagged(times_s, late, plain, [part.size for part in parts])
    unflagged = of_all if plain.all() else (
        order_statistics(times_s[plain]) if plain.any() else None)
    rank, share = _quickest(case, samples, waits, counted)
    last_in_s = None if common is None else _median_s(
        fold.last_in_ns(common), counted, case.batch)
    modes = modes_around_median(times_s, interval)
    told = {"two_modes": bool(modes), **changed(statistics, flagged, last_in_s)}
    return Measured(statistics, Timing(
        fold=folded.fold, calls=case.batch,
        n_warmup=int(has_flag(samples, Flag.WARMUP).sum()),
        n_ramp=int(folded.has(Use.RAMP, Use.COUNTED_RAMP).sum()),
        n_surplus=int(folded.has(Use.SURPLUS, Use.COUNTED_SURPLUS).sum()),
        n_late=int(late.sum()), n_outlier=int(outlier.sum()),
        unflagged_n=int(plain.sum()), unflagged_median_s=unflagged.median_s if unflagged else None,
        quality=_words(folded, statistics, told | _drifting(folded, statistics, flagged),
                       repeats=planned.repeats and len(launch_medians_s) > 1),
        stop_reasons=tuple(next(iter(records.values())).stop_reason
                           for _, records in sorted(passes.items())),
        **_opening(case, passes), last_in_s=last_in_s,
        local_max_s=_median_s(waits.longest_ns, counted, case.batch),
        imbalance_s=None if common is None else _median_s(fold.imbalance_ns(common), counted),
        enqueue_s=_median_s(different_rows(samples.enqueue_ns).max(axis=0), counted, case.batch),
        device_s=_median_s(different_rows(samples.device_ns).max(axis=0), counted, case.batch),
        clock_bound_s=None if common is None else common.bound_ns / 1e9,
        quickest_rank=rank, quickest_share=share, launch_medians_s=launch_medians_s,
        pass_medians_s=tuple(  # so that cases can be compared pass by pass
            median(folded.times_s[run[key]][counted[run[key]]]) if key in run else None
            for key in planned.keys),
        steps=_steps_of(samples, counted, [run.get(key) for key in planned.keys],
                        common.late_ns if common is not None and case.batch == 1 else None),
        all_count=case.is_fixed, unflagged=unflagged, ci_unit=known.unit, ci_rank=known.rank,
        launch_level=known.launch_level, modes=modes,
        late_start=_late_start(samples, folded, common, statistics.median_s)), folded.use)


def _late_start(
    samples: CaseSamples, folded: fold.Folded, common: fold.Edges | None, median_s: float,
) -> Comparison | None:
    """Return which rank starts latest; None if nobody can be compared, or too few passes are there.
    """
    if common is None or len(samples.ranks) == 1 or common.pass_late_ns is None:
        return None
    if not are_enough([part.size for part in folded.by_pass()]):
        return None
    return compared(LATE_START, samples.ranks, common.pass_late_ns / 1e9,
                    CLEAR_LATENESS * median_s)


def order_statistics(times_s: npt.NDArray[np.float64]) -> Statistics:
    """Return the statistics of at least one time, without an interval."""
    ordered_s = np.sort(times_s)
    p25_s, p75_s = percentiles(ordered_s, (25, 75))
    p5_s, p95_s, p99_s = percentiles_if_enough(ordered_s, (5, 95, 99))
    return Statistics(
        n=ordered_s.size, min_s=float(ordered_s[0]), p5_s=p5_s, p25_s=p25_s,
        median_s=median(ordered_s), p75_s=p75_s, p95_s=p95_s, p99_s=p99_s,
        max_s=float(ordered_s[-1]))


def summarise(times_s: npt.NDArray[np.float64]) -> Statistics:
    """Return the statistics of at least one time of one pass."""
    interval = median_interval(times_s, CI_LEVEL)
    return _with_precision(order_statistics(times_s), over_samples(interval))


def _with_precision(statistics: Statistics, known: Precision) -> Statistics:
    return replace(statistics, ci_low_s=known.low_s, ci_high_s=known.high_s,
                   ci_reliable=known.reliable, launch_low_s=known.launch_low_s,
                   launch_high_s=known.launch_high_s)


def _words(
    folded: fold.Folded, statistics: Statistics, told: Mapping[str, bool], *, repeats: bool,
) -> tuple[str, ...]:
    """Return the words of QUALITIES that apply; ``told`` has some of them."""
    applies = {
        **told,
        "clock_unreliable": folded.clock_unreliable,
        "ci_unreliable": statistics.ci_low_s is not None and not statistics.ci_reliable,
        "repeats": repeats,
        "ramp": bool(folded.has(Use.COUNTED_RAMP).any()),
    }
    return tuple(word for word in QUALITIES if applies.get(word))


def _drifting(
    folded: fold.Folded, statistics: Statistics, flagged: Flagged,
) -> dict[str, bool]:
    """Return, by the words of QUALITIES, how times change in a pass, where that matters."""
    if not is_unsettled(statistics, flagged):
        return {}
    parts = folded.steady_by_pass()
    return {"trend": any(drift.significant for drift in map(trend, parts) if drift),
            "change_point": any(map(change_point, parts)), "unsteady": folded.unsteady}


def _opening(case: Case, passes: Passes) -> dict[str, float | None]:
    """Return how long the first call and opening the group took where this case opened it."""
    opened = [record for records in passes.values() for record in records.values()
              if record.communicator_ns >= 0]
    return {"first_call_s": _longest_s(  # not known where the first row is several calls
        int(record.samples.end_ns[0] - record.samples.start_ns[0]) for record in opened
        if case.batch == 1 or single_calls(case)),
        "communicator_s": _longest_s(record.communicator_ns for record in opened)}


def _longest_s(durations_ns: Iterable[int]) -> float | None:
    longest_ns = max(durations_ns, default=None)
    return None if longest_ns is None else longest_ns / 1e9


def _median_s(times_ns: fold.Times, counted: npt.NDArray[np.bool_], calls: int = 1) -> float | None:
    """Return the median time of a call over the samples that count; None where none was measured.
    """
    measured_ns = times_ns[counted & (times_ns >= 0)]
    return median(measured_ns) / calls / 1e9 if measured_ns.size else None


def _quickest(
    case: Case, samples: CaseSamples, waits: fold.Waits, counted: npt.NDArray[np.bool_],
) -> tuple[int | None, float | None]:
    """Return the rank that was quickest most often, and in which share; of one group only."""
    if case.workload.groups > 1 or len(samples.ranks) == 1:
        return None, None
    times = fold.times_quickest(samples, waits, counted)
    row = int(np.argmax(times))
    return samples.ranks[row], float(times[row] / counted.sum())


def _steps_of(
    samples: CaseSamples, counted: npt.NDArray[np.bool_], passes: Sequence[slice | None],
    late_ns: fold.Times | None,
) -> Steps | None:
    """Return where the time of the counted samples went; None where there are no phases.

    ``passes`` are where each planned pass lies among the samples; ``late_ns``, (rank, sample), how
    late each rank began its step: without it there are no arrivals.
    """
    phases_ns = {name: values[:, counted] for name, values in fold.durations(samples).items()}
    if not phases_ns:
        return None
    step_ns = fold.waits_ns(samples)[:, counted]
    other_ns = step_ns - np.asarray(sum(phases_ns.values()), dtype=np.int64)
    total_ns = int(step_ns.sum()) or 1
    return Steps(
        ranks=samples.ranks, step_s=_medians_s(step_ns), other_s=_medians_s(other_ns),
        other_share=int(other_ns.sum()) / total_ns,
        phases=tuple(Phase(name, int(times_ns.sum()) / total_ns, _medians_s(times_ns),
                           *_vote(np.max, times_ns, samples.ranks),
                           *_vote(np.min, times_ns, samples.ranks))
                     for name, times_ns in phases_ns.items()),
        pass_step_s=tuple(part and _medians_s(fold.waits_ns(samples)[:, part][:, counted[part]])
                          for part in passes),
        arrivals=() if late_ns is None else tuple(_arrivals(samples, late_ns, counted)))


def _arrivals(
    samples: CaseSamples, late_ns: fold.Times, counted: npt.NDArray[np.bool_]
) -> Iterator[Arrival]:
    """Yield which rank is late at every bucket, in order; nothing of a single rank.

    The time in the exchange does not show it, because all ranks leave together.
    """
    for name, values in samples.phases.items():
        if not name.startswith(ARRIVAL) or len(samples.ranks) == 1:
            continue
        arrived_ns = (late_ns + values)[:, counted]
        is_last = arrived_ns == arrived_ns.max(axis=0)
        row = int(np.argmax(is_last.mean(axis=1)))
        behind_ns = arrived_ns[row] - np.median(np.delete(arrived_ns, row, axis=0), axis=0)
        yield Arrival(
            bucket=int(name.removeprefix(ARRIVAL)), median_s=_medians_s(arrived_ns),
            last_rank=samples.ranks[row], last_share=float(is_last[row].mean()),
            behind_s=median(behind_ns[is_last[row]]) / 1e9,
            pass_median_s=tuple(_medians_s((late_ns + values)[:, part][:, counted[part]])
                                for part in pass_slices(samples)))


def _vote(
    extreme: Callable[..., fold.Times], times_ns: fold.Times, ranks: tuple[int, ...]
) -> tuple[int | None, float | None]:
    """Return the rank that most often has the extreme time of all, and in which share."""
    if len(ranks) == 1:
        return None, None
    shares = np.mean(times_ns == extreme(times_ns, axis=0), axis=1)
    row = int(np.argmax(shares))
    return ranks[row], float(shares[row])


def _medians_s(times_ns: fold.Times) -> tuple[float, ...]:
    return tuple((medians(times_ns) / 1e9).tolist())

"""Stamps of different ranks on one time axis, the time of each sample, and which samples count.
Definitions (docs/method.md) after ReproMPI (Hunold and Carpen-Amarie, TPDS 2016): s_rk and e_rk are
start and end of sample k on rank r. Times are int64 ns of shape (sample,) unless noted. The longest
time of concurrent groups counts. Where a pass stops by itself, samples before the steady
state do not count, and as many count from every pass: one that ends by its budget has more samples
the faster the machine is. With a given number of iterations all timed samples count; the same ones
are flagged."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseSamples, Clocks, Finding
from hpcbench.reduce.stack import Use, any_flags, counts, pass_slices
from hpcbench.statistics.order import median, medians
from hpcbench.statistics.steady import BATCH, steady_from
from hpcbench.trace.clock import MAX_DRIFT, ClockModel, SyncRecord, bound_at, to_global
from hpcbench.trace.container import expected_content
from hpcbench.trace.schema import ARRIVAL, Flag
from hpcbench.trace.source import TraceSource, sync_records
from hpcbench.units import grouped, rank_list


@dataclass(frozen=True, slots=True)
class GlobalStamps:
    """Stamps on the global clock, int64 ns (rank, sample); differences are known to
    ``bound_ns``."""

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    bound_ns: float


@dataclass(frozen=True, slots=True)
class ClockHistory:
    """One clock, read by ``ranks``. ``models`` are in order of time; ``errors_ns`` as checks
    measured, ``refuting_ns`` those beyond their own and the model's bound."""

    ranks: tuple[int, ...]
    models: tuple[ClockModel, ...]
    errors_ns: tuple[float, ...]
    refuting_ns: tuple[float, ...]

    @property
    def steepest(self) -> float:
        return max((model.slope for model in self.models), key=abs)

    @property
    def excess_ns(self) -> float:
        return np.inf if abs(self.steepest) > MAX_DRIFT else max(self.refuting_ns, default=0.0)


@dataclass(frozen=True, slots=True)
class RankClocks:
    """The clock that each rank reads, its history, and the ranks that lack a
    synchronisation."""

    ids: Mapping[int, int]
    known: Mapping[int, ClockHistory]
    silent: frozenset[int]

    @property
    def n_clocks(self) -> int:
        return len(set(self.ids.values()))

    def stamps(self, samples: CaseSamples) -> GlobalStamps | None:
        """Return the stamps on one time axis, or None if some rank's clock is not known."""
        rows = grouped((self.ids[rank], row) for row, rank in enumerate(samples.ranks))
        if len(rows) == 1:
            return GlobalStamps(samples.start_ns, samples.end_ns, 0.0)
        if not rows.keys() <= self.known.keys():
            return None
        start_ns, end_ns = np.empty_like(samples.start_ns), np.empty_like(samples.end_ns)
        bounds_ns = []
        for number, rows_of_clock in rows.items():
            history, at = self.known[number], _slice_if_whole(rows_of_clock)
            for local_ns, into in ((samples.start_ns, start_ns), (samples.end_ns, end_ns)):
                if isinstance(at, slice):
                    to_global(history.models, local_ns[at], into[at])
                else:
                    into[at] = to_global(history.models, local_ns[at])
            limits_ns = bound_at(history.models, samples.end_ns[rows_of_clock[0]])
            bounds_ns.append(max(float(limits_ns.max(initial=0.0)), history.excess_ns))
        bound_ns = sum(sorted(bounds_ns)[-2:])
        return GlobalStamps(start_ns, end_ns, bound_ns) if np.isfinite(bound_ns) else None

    def bracketed(self, rank: int, begin_ns: int, end_ns: int) -> bool:
        history = self.known.get(self.ids[rank])
        return history is None or (history.models[0].t_ref_ns <= begin_ns
                                   and end_ns <= history.models[-1].t_ref_ns)

    def summary(self) -> Clocks | None:
        if not self.known:
            return None
        histories = self.known.values()
        errors_ns = [error for history in histories for error in history.errors_ns]
        return Clocks(
            n_clocks=self.n_clocks,
            n_syncs=max(len(item.models) for item in histories) if self.n_clocks > 1 else 0,
            bound_s=max(model.bound_ns for item in histories for model in item.models) / 1e9,
            check_error_s=max(errors_ns) / 1e9 if errors_ns else None,
            drift_ppm=max(abs(item.steepest) for item in histories) * 1e6)


def _slice_if_whole(rows: Sequence[int]) -> slice | Sequence[int]:
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def rank_clocks(sources: Iterable[TraceSource]) -> RankClocks:
    keys: dict[int, str] = {}
    synced: dict[str, dict[int, list[SyncRecord]]] = defaultdict(dict)
    silent: set[int] = set()
    for source in sources:
        rank = source.header.rank
        with expected_content(source.path):
            syncs = sync_records(source)
        keys[rank] = syncs[-1].identity if syncs else source.header.node
        if syncs:
            synced[keys[rank]][rank] = syncs
        else:
            silent.add(rank)
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return RankClocks({rank: numbers[key] for rank, key in keys.items()},
                      {numbers[key]: _history(syncs) for key, syncs in synced.items()},
                      frozenset(silent))


def _history(by_rank: Mapping[int, Sequence[SyncRecord]]) -> ClockHistory:
    every = [record for records in by_rank.values() for record in records]
    by_time = {record.model.t_ref_ns: record.model for record in every}
    checks = {(record.model, record.check) for record in every if record.check}
    refuting = [check.error_ns for model, check in checks if check.refutes(model)]
    return ClockHistory(tuple(by_rank), tuple(by_time[t_ref_ns] for t_ref_ns in sorted(by_time)),
                        tuple(sorted(check.error_ns for _, check in checks)),
                        tuple(sorted(refuting)))


def clock_findings(
    clocks: RankClocks, unbracketed: Mapping[str, frozenset[int]]
) -> Iterator[Finding]:
    """Yield the faults of several clocks. ``unbracketed``: label of a case -> ranks."""
    if clocks.n_clocks == 1:
        return
    if clocks.silent:
        yield Finding("HB121", "note", f"rank {rank_list(clocks.silent)}: no clock model, but the "
                      "ranks are on several clocks: only durations on one rank are used of cases "
                      "with them; run again")
    if unbracketed:
        label, ranks = next(iter(unbracketed.items()))
        yield Finding("HB121", "note", f"{len(unbracketed)} cases were not between two "
                      f"synchronisations of the clocks, first {label} on rank {rank_list(ranks)}: "
                      "their clocks are extrapolated, with a wider bound; let the run end by "
                      "itself")
    for history in clocks.known.values():
        if history.refuting_ns:
            yield Finding("HB122", "note", f"rank {rank_list(history.ranks)}: the clock was found "
                          f"{max(history.refuting_ns):.0f} ns off right after a synchronisation, "
                          f"more than the bounds allow, in {len(history.refuting_ns)} of "
                          f"{len(history.errors_ns)} checks: that error is used as its bound; look "
                          "at the load and the clock source of the node")
        if abs(history.steepest) > MAX_DRIFT:
            yield Finding("HB123", "note", f"rank {rank_list(history.ranks)}: the clock drifts "
                          f"{history.steepest * 1e6:.0f} ppm, more than {MAX_DRIFT * 1e6:.0f} ppm: "
                          "it was set or stepped; global times of its cases are not used; run "
                          "again")


Times = npt.NDArray[np.int64]
_CACHED_VALUES = 8192
MOST_CLOCK_ERROR = 0.05
"""Share of the median: with a larger bound between clocks, global times are not used."""


def sample_durations_ns(samples: CaseSamples) -> Times:
    """Return e_rk - s_rk, (rank, sample). The rank that all wait for has the shortest."""
    return samples.end_ns - samples.start_ns


@dataclass(frozen=True, slots=True, eq=False)
class DurationExtremes:
    """The minimum and the maximum over ranks of e_rk - s_rk, (sample,) each."""

    shortest_ns: Times
    longest_ns: Times


def extreme_durations(samples: CaseSamples) -> DurationExtremes:
    parts = [(some_ns.min(axis=0), some_ns.max(axis=0)) for some_ns in _some_durations_ns(samples)]
    shortest, longest = zip(*parts, strict=True)
    return DurationExtremes(np.stack(shortest).min(axis=0), np.stack(longest).max(axis=0))


def durations(samples: CaseSamples) -> Mapping[str, Times]:
    return {name: values for name, values in samples.phases.items() if not name.startswith(ARRIVAL)}


def times_quickest(
    samples: CaseSamples, waits: DurationExtremes, chosen: npt.NDArray[np.bool_],
) -> npt.NDArray[np.intp]:
    """Return (rank,): in how many chosen samples each rank had the shortest e_rk - s_rk."""
    shortest_ns = np.where(chosen, waits.shortest_ns, -1)  # no wait is as short
    return np.concatenate([np.count_nonzero(some_ns == shortest_ns, axis=1)
                           for some_ns in _some_durations_ns(samples)])


def _some_durations_ns(samples: CaseSamples) -> Iterator[Times]:
    for some in _some_ranks(*samples.start_ns.shape):
        yield samples.end_ns[some] - samples.start_ns[some]


def _some_ranks(ranks: int, samples: int) -> Iterator[slice]:
    """Yield slices of ranks whose values fit the processor's cache."""
    at_once = max(1, _CACHED_VALUES // max(1, samples))
    for first in range(0, ranks, at_once):
        yield slice(first, first + at_once)


@dataclass(frozen=True, slots=True)
class Edges:
    """Earliest and latest stamps of each group on the global clock, (group, sample), known to
    ``bound_ns``. ``late_ns`` is s_rk - min_r s_rk, (rank, sample), of steps; ``pass_late_ns`` its
    median over timed samples, (rank, pass)."""

    first_start_ns: Times
    last_start_ns: Times
    first_end_ns: Times
    last_end_ns: Times
    bound_ns: float
    late_ns: Times | None = None
    pass_late_ns: npt.NDArray[np.float64] | None = None


def edges(
    stamps: GlobalStamps, groups: int = 1, stride: int = 1, *, each: bool = False,
    timed: npt.NDArray[np.bool_] | None = None,
) -> Edges:
    """Return the edges of `equal_groups`, and with ``each`` the delay of each rank. ``timed``
    (sample,) selects the samples of ``pass_late_ns``."""
    ranks, samples = stamps.start_ns.shape
    spans = groups // stride, ranks // groups, stride, samples
    (first_start_ns, last_start_ns), (first_end_ns, last_end_ns) = (
        [extreme(axis=1).reshape(groups, samples) for extreme in (rows.min, rows.max)]
        for rows in (stamps.start_ns.reshape(spans), stamps.end_ns.reshape(spans)))
    earliest_ns, latest_ns = first_start_ns.min(axis=0), last_start_ns.max(axis=0)
    return Edges(first_start_ns, last_start_ns, first_end_ns, last_end_ns,
                 stamps.bound_ns, stamps.start_ns - earliest_ns if each else None,
                 None if timed is None else _medians_after(
                     stamps.start_ns, earliest_ns, latest_ns, _chosen(timed))[:, None])


def _medians_after(
    stamps_ns: Times, first_ns: Times, last_ns: Times, chosen: npt.NDArray[np.intp] | slice,
) -> npt.NDArray[np.float64]:
    """Return (rank,): the median delay after the first rank. 32-bit numbers sort in half the
    time."""
    first_ns, last_ns = first_ns[chosen], last_ns[chosen]
    is_short = int((last_ns - first_ns).max()) < 1 << 31
    number = np.int32 if is_short else np.int64
    return np.concatenate([
        medians((stamps_ns[some, chosen] - first_ns).astype(number, copy=False))
        for some in _some_ranks(len(stamps_ns), first_ns.size)])


def _chosen(which: npt.NDArray[np.bool_]) -> npt.NDArray[np.intp] | slice:
    """Return the indices of true values, as a slice if contiguous: numpy then copies nothing."""
    at = np.flatnonzero(which)
    return slice(at[0], at[-1] + 1) if at.size and at[-1] - at[0] + 1 == at.size else at


def joined(parts: Sequence[Edges | None]) -> Edges | None:
    """Return the edges of several passes one after another; None if one has none."""
    present = [part for part in parts if part is not None]
    if len(present) < len(parts) or not present:
        return None
    names = ["first_start_ns", "last_start_ns", "first_end_ns", "last_end_ns",
             *(name for name in ("late_ns", "pass_late_ns")
               if all(getattr(part, name) is not None for part in present))]
    return Edges(bound_ns=max(part.bound_ns for part in present), **{
        name: np.concatenate([getattr(part, name) for part in present], axis=1) for name in names})


def global_ns(stamps: Edges) -> Times:
    """Return max_r e_rk - min_r s_rk over all ranks: from the first start to the last end."""
    return np.asarray(stamps.last_end_ns.max(axis=0) - stamps.first_start_ns.min(axis=0))


def last_in_ns(stamps: Edges) -> Times:
    """Return max_r e_rk - max_r s_rk: the time after the last rank's arrival."""
    return np.asarray((stamps.last_end_ns - stamps.last_start_ns).max(axis=0))


def imbalance_ns(stamps: Edges) -> Times:
    """Return max_r s_rk - min_r s_rk: how unevenly the ranks arrived."""
    return np.asarray((stamps.last_start_ns - stamps.first_start_ns).max(axis=0))


def overtaken_ns(stamps: Edges) -> Times:
    """Return max_r s_rk - min_r e_rk, (group, sample): positive if a rank left before the last
    came."""
    return stamps.last_start_ns - stamps.first_end_ns


def overtaking_ns(case: Case, common: Edges) -> npt.NDArray[np.float64]:
    """Return by how much a rank certainly left before the last one came, (group, sample). -inf for
    operations in which some rank does not need all others, primitives included."""
    known = case.workload.features.needs_all_ranks
    return np.asarray(overtaken_ns(common) - (common.bound_ns if known else np.inf))


@dataclass(frozen=True, slots=True)
class Folded:
    """One time for each sample by a ``fold``, a key of `results.FOLDS`, and its `Use`.
    ``unsteady``: the cut of a pass is the latest searched; ``clock_unreliable``: the mode's fold is
    another."""

    fold: str
    times_s: npt.NDArray[np.float64]
    use: npt.NDArray[np.int64]
    passes: tuple[slice, ...]
    unsteady: bool
    clock_unreliable: bool

    @property
    def counted(self) -> npt.NDArray[np.bool_]:
        return counts(self.use)

    def has(self, *uses: Use) -> npt.NDArray[np.bool_]:
        return np.asarray(np.logical_or.reduce([self.use == use for use in uses]), np.bool_)

    def by_pass(self) -> list[npt.NDArray[np.float64]]:
        return [self.times_s[part][self.counted[part]] for part in self.passes]

    def steady_by_pass(self) -> list[npt.NDArray[np.float64]]:
        steady = self.has(Use.COUNTED, Use.COUNTED_SURPLUS)
        return [self.times_s[part][steady[part]] for part in self.passes]


def fold_samples(
    case: Case, samples: CaseSamples, waits: DurationExtremes, common: Edges | None,
) -> Folded:
    """Return the times by the fold of the case's mode, or ``local_max`` where clocks are too
    inexact. ``common`` are the samples on the global clock, None if there is none."""
    if case.mode == "pipelined":
        return _folded("per_call", case, samples, waits.longest_ns / case.batch)
    if case.mode != "isolated":
        return _folded("local_max", case, samples, waits.longest_ns)
    if common is not None and not np.any(overtaking_ns(case, common) > 0):
        folded = _folded("global", case, samples, global_ns(common))
        median_s = median(folded.times_s[folded.counted])
        if common.bound_ns <= MOST_CLOCK_ERROR * median_s * 1e9:
            return folded
    return replace(_folded("local_max", case, samples, waits.longest_ns),
                   clock_unreliable=True)


def _folded(
    fold: str, case: Case, samples: CaseSamples,
    times_ns: npt.NDArray[np.int64] | npt.NDArray[np.float64],
) -> Folded:
    times_s = np.asarray(times_ns / 1e9, dtype=np.float64)
    passes = tuple(pass_slices(samples))
    use, unsteady = _untimed_uses(samples), False
    timed = [part.start + np.flatnonzero(use[part] == Use.COUNTED) for part in passes]
    for timed_at, cut in zip(timed, steady_from([times_s[at] for at in timed]), strict=True):
        use[timed_at[:cut]] = Use.COUNTED_RAMP if case.is_fixed else Use.RAMP
        latest_cut = timed_at.size // BATCH // 2 * BATCH  # that `steady_from` tries
        unsteady |= 0 < cut == latest_cut
    _level(use, passes, Use.COUNTED_SURPLUS if case.is_fixed else Use.SURPLUS)
    return Folded(fold, times_s, use, passes, unsteady, clock_unreliable=False)


def _untimed_uses(samples: CaseSamples) -> npt.NDArray[np.int64]:
    use = np.full(samples.launch.shape, Use.COUNTED, dtype=np.int64)
    flags = any_flags(samples)
    use[flags & Flag.WARMUP != 0] = Use.WARMUP
    use[flags & Flag.SINGLE != 0] = Use.SINGLE
    return use


def uses_of_failed(samples: CaseSamples) -> npt.NDArray[np.int64]:
    use = _untimed_uses(samples)
    use[use == Use.COUNTED] = Use.CASE_NOT_OK
    return use


def _level(use: npt.NDArray[np.int64], passes: Sequence[slice], surplus: Use) -> None:
    """Leave as many samples COUNTED in each pass as in the shortest one, evenly spread over it."""
    counted_at = [part.start + np.flatnonzero(use[part] == Use.COUNTED) for part in passes]
    least = min(indices.size for indices in counted_at)
    for indices in counted_at:
        kept = ((np.arange(least) + 0.5) * indices.size / least).astype(np.intp)
        use[indices] = surplus
        use[indices[kept]] = Use.COUNTED

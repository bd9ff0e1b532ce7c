"""Stamps of different ranks on one time axis, and how far they can be off.

Every rank's stamps are of its own clock. Ranks of one node share a clock; between nodes the clock
models in the notes of the traces say what the difference was, and how well that is known.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.clock_summary import Clocks
from hpcbench.reduce.results import CaseSamples, Finding
from hpcbench.trace.clock import MAX_DRIFT, ClockModel, SyncRecord, bound_at, to_global
from hpcbench.trace.container import expected_content
from hpcbench.trace.source import TraceSource, sync_records
from hpcbench.units import grouped, rank_list

_FIRST_WITH_CLOCKS = 2
"""Schema version of traces."""


@dataclass(frozen=True, slots=True)
class GlobalStamps:
    """Stamps of one case on the global clock, int64 ns of shape (rank, sample).

    Two ranks' times may be apart by up to ``bound_ns`` more or less than the truth; 0 on one clock.
    """

    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    bound_ns: float


@dataclass(frozen=True, slots=True)
class ClockHistory:
    """What is known about one clock, from the ``ranks`` that read it and were synchronised.

    ``models`` are in order of time, at most one for each. ``errors_ns`` are as the checks measured
    them, ``refuting_ns`` those of them that neither their own nor the model's bound allows.
    """

    ranks: tuple[int, ...]
    models: tuple[ClockModel, ...]
    errors_ns: tuple[float, ...]
    refuting_ns: tuple[float, ...]

    @property
    def steepest(self) -> float:
        """Return the slope that is furthest from 0."""
        return max((model.slope for model in self.models), key=abs)

    @property
    def excess_ns(self) -> float:
        """Return a measured error beyond the bounds; no limit for a stepped clock."""
        return np.inf if abs(self.steepest) > MAX_DRIFT else max(self.refuting_ns, default=0.0)


@dataclass(frozen=True, slots=True)
class RankClocks:
    """The clocks of a run: which one each rank reads, and what is known about it, if anything.

    ``silent`` are the ranks that should have recorded a synchronisation and did not.
    """

    ids: Mapping[int, int]
    known: Mapping[int, ClockHistory]
    silent: frozenset[int]

    @property
    def n_clocks(self) -> int:
        """Return how many different clocks the ranks read."""
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
        for number, found in rows.items():
            history, at = self.known[number], _slice_if_whole(found)
            for local_ns, into in ((samples.start_ns, start_ns), (samples.end_ns, end_ns)):
                if isinstance(at, slice):
                    to_global(history.models, local_ns[at], into[at])
                else:
                    into[at] = to_global(history.models, local_ns[at])
            limits_ns = bound_at(history.models, samples.end_ns[found[0]])
            bounds_ns.append(max(float(limits_ns.max(initial=0.0)), history.excess_ns))
        bound_ns = sum(sorted(bounds_ns)[-2:])
        return GlobalStamps(start_ns, end_ns, bound_ns) if np.isfinite(bound_ns) else None

    def bracketed(self, rank: int, begin_ns: int, end_ns: int) -> bool:
        """Return whether the rank's clock was synchronised before and after this time."""
        history = self.known.get(self.ids[rank])
        return history is None or (history.models[0].t_ref_ns <= begin_ns
                                   and end_ns <= history.models[-1].t_ref_ns)

    def summary(self) -> Clocks | None:
        """Return how the clocks were compared, or None if nothing was recorded of it."""
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
    """Return rows in order as a slice where none is left out: numpy does not copy it."""
    return slice(rows[0], rows[-1] + 1) if rows[-1] - rows[0] + 1 == len(rows) else rows


def rank_clocks(sources: Iterable[TraceSource]) -> RankClocks:
    """Return the clocks of the ranks that wrote these traces."""
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
        elif source.header.schema_version >= _FIRST_WITH_CLOCKS:
            silent.add(rank)
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return RankClocks({rank: numbers[key] for rank, key in keys.items()},
                      {numbers[key]: _history(syncs) for key, syncs in synced.items()},
                      frozenset(silent))


def _history(by_rank: Mapping[int, Sequence[SyncRecord]]) -> ClockHistory:
    """Put together what the ranks that read one clock recorded; as a rule they have the same."""
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
    """Yield what is wrong with the clocks, if there are several.

    ``unbracketed``: label of a case -> ranks that were not synchronised before and after it.
    """
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

"""Stamps of different ranks on one time axis, and how far they can be off.

Every rank's stamps are of its own clock. Ranks of one node share a clock; between nodes the clock
models in the notes of the traces say what the difference was, and how well that is known.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.measure.clock import MAX_DRIFT, ClockCheck, ClockModel, bound_at, to_global
from hpcbench.reduce.intake import rank_list
from hpcbench.reduce.results import CaseSamples, Clocks, Finding
from hpcbench.trace.source import TraceSource

Models = tuple[ClockModel, ...]
_FIRST_WITH_MODELS = 2
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
class RankClocks:
    """What is known of each rank's clock.

    Attributes:
        ids: rank -> a number that ranks have in common if they read the same clock.
        models: rank -> its clock models in order of time; ranks without any are left out.
        checks: rank -> the comparisons that were made after the synchronisations.
        excess_ns: rank -> an error that its models have in spite of their bounds, or 0.
        silent: ranks that should have recorded a model and did not.
    """

    ids: Mapping[int, int]
    models: Mapping[int, Models]
    checks: Mapping[int, tuple[ClockCheck, ...]]
    excess_ns: Mapping[int, float]
    silent: frozenset[int]

    def stamps(self, samples: CaseSamples) -> GlobalStamps | None:
        """Return the stamps on one time axis, or None if some rank's clock is not known."""
        ids = [self.ids[rank] for rank in samples.ranks]
        if len(set(ids)) == 1:
            return GlobalStamps(samples.start_ns, samples.end_ns, 0.0)
        if any(rank not in self.models for rank in samples.ranks):
            return None
        start_ns, end_ns = np.empty_like(samples.start_ns), np.empty_like(samples.end_ns)
        bounds_ns = []
        for clock in dict.fromkeys(ids):
            rows = [row for row, number in enumerate(ids) if number == clock]
            models = self.models[samples.ranks[rows[0]]]
            start_ns[rows] = to_global(models, samples.start_ns[rows])
            end_ns[rows] = to_global(models, samples.end_ns[rows])
            limit_ns = float(bound_at(models, samples.end_ns[rows]).max(initial=0.0))
            bounds_ns.append(max([limit_ns, *(self.excess_ns[samples.ranks[row]] for row in rows)]))
        bound_ns = sum(sorted(bounds_ns)[-2:])
        return GlobalStamps(start_ns, end_ns, bound_ns) if np.isfinite(bound_ns) else None

    def brackets(self, rank: int, begin_ns: int, end_ns: int) -> bool:
        """Return whether the rank's clock was synchronised before and after this time."""
        models = self.models.get(rank, ())
        return bool(models) and models[0].t_ref_ns <= begin_ns and end_ns <= models[-1].t_ref_ns

    @property
    def n_clocks(self) -> int:
        """Return how many different clocks the ranks read."""
        return len(set(self.ids.values()))

    def rows(self) -> tuple[list[tuple[int, ClockModel]], list[tuple[int, ClockCheck]]]:
        """Return every (rank, model) and every (rank, check)."""
        return ([(rank, model) for rank, models in self.models.items() for model in models],
                [(rank, check) for rank, checks in self.checks.items() for check in checks])

    def summary(self) -> Clocks | None:
        """Return how the clocks were compared, or None if nothing was recorded of it."""
        if not self.models:
            return None
        every = [model for models in self.models.values() for model in models]
        errors = [check.error_ns for checks in self.checks.values() for check in checks]
        return Clocks(
            n_clocks=self.n_clocks,
            n_syncs=max(map(len, self.models.values())) if self.n_clocks > 1 else 0,
            bound_s=max(model.bound_ns for model in every) / 1e9,
            check_error_s=max(errors) / 1e9 if errors else None,
            drift_ppm=max(abs(model.slope) for model in every) * 1e6)


def rank_clocks(sources: Iterable[TraceSource]) -> RankClocks:
    """Return the clocks of the ranks that wrote these traces."""
    models: dict[int, Models] = {}
    checks: dict[int, tuple[ClockCheck, ...]] = {}
    keys: dict[int, object] = {}
    silent: set[int] = set()
    for source in sources:
        rank, found = source.header.rank, _models(source)
        if not found and source.header.schema_version >= _FIRST_WITH_MODELS:
            silent.add(rank)
        keys[rank] = _clock(found) if found else source.header.node
        models |= {rank: found} if found else {}
        checks[rank] = tuple(ClockCheck.from_json(note.data) for note in source.notes
                             if note.kind == "clock_check")
    numbers = {key: number for number, key in enumerate(dict.fromkeys(keys.values()))}
    return RankClocks(
        {rank: numbers[key] for rank, key in keys.items()}, models, checks,
        {rank: _excess_ns(found, checks[rank]) for rank, found in models.items()},
        frozenset(silent))


def _models(source: TraceSource) -> Models:
    """Return a rank's models in order of time; of several at one time the last."""
    found = [ClockModel.from_json(note.data) for note in source.notes if note.kind == "clock"]
    by_time = {model.t_ref_ns: model for model in found}
    return tuple(by_time[t_ref_ns] for t_ref_ns in sorted(by_time))


def _clock(models: Models) -> object:
    """Return what is equal for ranks that read one clock.

    A rank that shares another's clock has its models, too; a rank that reads the global clock has
    models that change nothing.
    """
    changes = any((model.slope, model.offset_ns, model.bound_ns) != (0, 0, 0) for model in models)
    return models if changes else "global"


def _excess_ns(models: Models, checks: Sequence[ClockCheck]) -> float:
    """Return an error that was found in spite of the bounds; no limit for a stepped clock."""
    if any(abs(model.slope) > MAX_DRIFT for model in models):
        return np.inf
    return max((check.error_ns for check in _refuting(models, checks)), default=0.0)


def _refuting(models: Models, checks: Sequence[ClockCheck]) -> list[ClockCheck]:
    """Return the checks with an error of more than their bound and the model's allow."""
    return [check for check in checks if check.error_ns > check.bound_ns + float(
        bound_at(_until(models, check.local_ns), np.array(check.local_ns)))]


def _until(models: Models, local_ns: int) -> Models:
    """Return the models that were known at that time, at least the first."""
    return tuple(model for model in models if model.t_ref_ns <= local_ns) or models[:1]


def clock_findings(
    clocks: RankClocks, unbracketed: Mapping[str, frozenset[int]]
) -> Iterator[Finding]:
    """Yield what is wrong with the clocks, if there are several.

    ``unbracketed``: label of a case -> ranks that were not synchronised before and after it.
    """
    if clocks.n_clocks == 1:
        return
    if clocks.silent:
        yield Finding("HB121", "note", f"rank {rank_list(clocks.silent)}: no clock model, and the "
                      "ranks are on several clocks: only durations on one rank are used; run again")
    if unbracketed:
        label, ranks = next(iter(unbracketed.items()))
        yield Finding("HB121", "note", f"{len(unbracketed)} cases were not between two "
                      f"synchronisations of the clocks, first {label} on rank {rank_list(ranks)}: "
                      "their clocks are extrapolated, with a wider bound; let the run end by "
                      "itself")
    for rank, models in clocks.models.items():
        checks = clocks.checks[rank]
        if refuting := _refuting(models, checks):
            worst = max(refuting, key=lambda check: check.error_ns)
            yield Finding("HB122", "note", f"rank {rank}: its clock was found "
                          f"{worst.error_ns:.0f} ns off after a synchronisation, more than its "
                          f"bounds allow ({len(refuting)} of {len(checks)} checks): that error is "
                          "used as its bound; look at the load and the clock source of its node")
        steep = max(models, key=lambda model: abs(model.slope))
        if abs(steep.slope) > MAX_DRIFT:
            yield Finding("HB123", "note", f"rank {rank}: its clock drifts {steep.slope * 1e6:.0f} "
                          f"ppm, more than {MAX_DRIFT * 1e6:.0f} ppm: it was set or stepped; "
                          "global times of its cases are not used; run again")

"""Records of all ranks stacked to (rank, sample), passes and launches one after another; views of
some samples."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseSamples
from hpcbench.trace.schema import ARRIVAL, SAMPLE_COLUMNS, UNTIMED, Flag, Record


class Use(IntEnum):
    """Whether a sample is in the statistics, and why not; up to COUNTED_SURPLUS it is. COUNTED_RAMP
    and COUNTED_SURPLUS are of cases with a given number of iterations; in others RAMP (before the
    steady state) and SURPLUS (beyond the shortest pass) do not count. SINGLE is one call made for
    its check, in mode pipelined."""

    COUNTED = 0
    COUNTED_RAMP = 1
    COUNTED_SURPLUS = 2
    WARMUP = 3
    SINGLE = 4
    RAMP = 5
    SURPLUS = 6
    CASE_NOT_OK = 7


def counts(use: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
    return np.asarray(use <= Use.COUNTED_SURPLUS)


Pass = Mapping[int, Record]
"""The records of one pass of one case, by rank."""


class PassKey(NamedTuple):
    """One pass of one launch."""

    launch: int
    pass_index: int


def stack_samples(passes: Mapping[PassKey, Pass]) -> CaseSamples | None:
    """Return the stamps of all passes; None if nothing was stamped, or ranks stamped different
    numbers of samples. Without phases unless all records have the same."""
    stamped = {key: records for key, records in sorted(passes.items())
               if any(len(record.samples) for record in records.values())}
    members = {tuple(sorted(records)) for records in stamped.values()}
    if len(members) != 1 or any(len({len(record.samples) for record in records.values()}) > 1
                                for records in stamped.values()):
        return None
    (ranks,) = members
    counts = [len(records[ranks[0]].samples) for records in stamped.values()]
    ordered = [records[rank] for rank in ranks for records in stamped.values()]
    columns: dict[str, Any] = {
        name: np.concatenate(parts).reshape(len(ranks), -1) for name, parts in zip(
            SAMPLE_COLUMNS, zip(*(record.samples.columns() for record in ordered), strict=True),
            strict=True)}
    names = {tuple(record.phases) for record in ordered}
    phases = {name: np.concatenate([record.phases[name] for record in ordered]).reshape(
        len(ranks), -1) for name in names.pop()} if len(names) == 1 else {}
    launch, pass_index = np.repeat(np.array(list(stamped), dtype=np.int64), counts, axis=0).T
    return CaseSamples(ranks=ranks, launch=launch, pass_index=pass_index, phases=phases, **columns)


def is_timed(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return (sample,): whether a sample is neither a warm-up nor a single call, on any rank."""
    return ~has_flag(samples, UNTIMED)


def has_flag(samples: CaseSamples, flags: int) -> npt.NDArray[np.bool_]:
    return np.asarray(any_flags(samples) & flags != 0, dtype=np.bool_)


def any_flags(samples: CaseSamples) -> npt.NDArray[np.int64]:
    return np.asarray(np.bitwise_or.reduce(samples.flags, axis=0), dtype=np.int64)


def pass_slices(samples: CaseSamples) -> list[slice]:
    """Return where the samples of each pass of each launch lie, in order."""
    keys = np.stack([samples.launch, samples.pass_index])
    cuts = np.flatnonzero(np.any(keys[:, 1:] != keys[:, :-1], axis=0)) + 1
    edges = [0, *cuts.tolist(), keys.shape[1]]
    return [slice(*pair) for pair in zip(edges, edges[1:], strict=False)]


@dataclass(frozen=True, slots=True)
class SampleMap:
    """Durations of a case: ``time_s`` (rank, column) is the longest of ``step`` samples.
    ``least_s`` and ``greatest_s`` are over timed samples, or all if none is; ``below``, ``above``:
    some lie outside. ``untimed`` are runs [first, end) in no statistic; after ``pass_ends`` another
    pass begins."""

    ranks: tuple[int, ...]
    n_samples: int
    step: int
    time_s: npt.NDArray[np.float64]
    least_s: float
    greatest_s: float
    untimed: tuple[tuple[int, int], ...]
    has_single: bool
    pass_ends: tuple[int, ...]
    below: bool
    above: bool


def sample_map(samples: CaseSamples, most_columns: int) -> SampleMap:
    time_s = (samples.end_ns - samples.start_ns) / 1e9
    count = time_s.shape[1]
    step = -(-count // most_columns)
    untimed = ~is_timed(samples)
    timed = time_s[:, ~untimed]
    scale = timed if timed.size else time_s
    edges = np.flatnonzero(np.diff(untimed.astype(int), prepend=0, append=0))
    return SampleMap(
        ranks=samples.ranks, n_samples=count, step=step,
        time_s=np.maximum.reduceat(time_s, np.arange(0, count, step), axis=1),
        least_s=float(scale.min()), greatest_s=float(scale.max()),
        untimed=tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2)),
        has_single=bool(np.any(samples.flags & Flag.SINGLE)),
        pass_ends=tuple(part.stop - 1 for part in pass_slices(samples)[:-1]),
        below=bool(time_s.min() < scale.min()), above=bool(time_s.max() > scale.max()))


@dataclass(frozen=True, slots=True)
class RankTimeline:
    """One rank in one sample: it begins ``begin_s`` after the first rank; ``parts`` are (phase,
    seconds), the part ``""`` is in no phase."""

    rank: int
    begin_s: float
    parts: tuple[tuple[str, float], ...]


@dataclass(frozen=True, slots=True)
class SampleTimeline:
    """All ranks in one sample; ``number`` is its index in the case."""

    name: str
    number: int
    ranks: tuple[RankTimeline, ...]


def sample_timelines(samples: CaseSamples) -> tuple[SampleTimeline, ...]:
    """Return the middle and the longest counted sample. The stamps have to be of one clock."""
    counted = counts(samples.use) if samples.use is not None else is_timed(samples)
    places = np.flatnonzero(counted)
    if not places.size:
        return ()
    time_ns = samples.end_ns.max(axis=0) - samples.start_ns.min(axis=0)
    ordered = places[np.argsort(time_ns[places], kind="stable")]
    chosen = {"middle": int(ordered[(len(ordered) - 1) // 2]), "longest": int(ordered[-1])}
    return tuple(SampleTimeline(name, at, _ranks(samples, at)) for name, at in chosen.items()
                 if name == "middle" or at != chosen["middle"])


def _ranks(samples: CaseSamples, at: int) -> tuple[RankTimeline, ...]:
    begin_ns = samples.start_ns[:, at].min()
    ranks = []
    for row, rank in enumerate(samples.ranks):
        whole_s = float(samples.end_ns[row, at] - samples.start_ns[row, at]) / 1e9
        parts = [(name, float(values[row, at]) / 1e9) for name, values in samples.phases.items()
                 if not name.startswith(ARRIVAL)]
        rest_s = max(whole_s - sum(seconds for _, seconds in parts), 0.0)
        ranks.append(RankTimeline(rank, float(samples.start_ns[row, at] - begin_ns) / 1e9,
                                (*parts, ("", rest_s))))
    return tuple(ranks)

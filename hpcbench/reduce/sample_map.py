"""Rank x sample: how long each rank was in the call, for a picture of one case."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import CaseSamples
from hpcbench.trace.schema import UNTIMED, Flag


@dataclass(frozen=True, slots=True)
class SampleMap:
    """The samples of one case, each column the longest of ``step`` of them.

    Attributes:
        ranks: the rank of each row.
        n_samples: samples of a rank.
        time_s: (rank, column): end - start on the rank's own clock.
        least_s, greatest_s: over timed samples, or over all if none is timed.
        untimed: runs of samples that are in no statistic, as first and behind the last.
        has_single: whether some of them are single checked calls.
        pass_ends: samples after which another pass, or another launch, begins.
        below, above: whether a sample is below ``least_s`` or above ``greatest_s``.
    """

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
    """Return the map of at least one sample, in at most so many columns."""
    time_s = (samples.end_ns - samples.start_ns) / 1e9
    count = time_s.shape[1]
    step = -(-count // most_columns)
    untimed = np.any(samples.flags & UNTIMED, axis=0)
    timed = time_s[:, ~untimed]
    scale = timed if timed.size else time_s
    edges = np.flatnonzero(np.diff(np.concatenate(([0], untimed.astype(int), [0]))))
    ends = np.flatnonzero(np.diff(samples.pass_index) | np.diff(samples.launch))
    return SampleMap(
        ranks=samples.ranks, n_samples=count, step=step,
        time_s=np.maximum.reduceat(time_s, np.arange(0, count, step), axis=1),
        least_s=float(scale.min()), greatest_s=float(scale.max()),
        untimed=tuple((int(first), int(end)) for first, end in edges.reshape(-1, 2)),
        has_single=bool(np.any(samples.flags & Flag.SINGLE)), pass_ends=tuple(ends.tolist()),
        below=bool(time_s.min() < scale.min()), above=bool(time_s.max() > scale.max()))

"""The time of each sample, and which samples count.

What the time of a sample is, its fold, follows from the timing mode (`results.FOLDS`). Of every
pass the samples before the steady state are set aside. Of the others, flagged or not, as many
count from every pass: a pass that ends when its time is used takes the more samples the faster
the machine just is, and would outweigh the slow ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case
from hpcbench.reduce.derived import Edges, global_ns, local_max_ns
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import is_timed, pass_slices
from hpcbench.reduce.stamps import overtaking_ns
from hpcbench.statistics.order import median
from hpcbench.statistics.steady import BATCH, steady_from

MOST_CLOCK_ERROR = 0.05
"""Of the median: with a larger bound between clocks, global times are not used."""


@dataclass(frozen=True, slots=True)
class Folded:
    """One time for each sample.

    Attributes:
        fold: key of `results.FOLDS`.
        times_s: (sample,), of all samples.
        counted: (sample,), whether it counts in the statistics.
        n_ramp: samples before the steady state, which do not.
        n_surplus: samples left out so that every pass counts alike.
        passes: where each pass lies among the samples.
        unsteady: the cut of a pass is the latest that is looked for.
        clock_unreliable: the fold of the mode would have been another.
    """

    fold: str
    times_s: npt.NDArray[np.float64]
    counted: npt.NDArray[np.bool_]
    n_ramp: int
    n_surplus: int
    passes: tuple[slice, ...]
    unsteady: bool
    clock_unreliable: bool

    def by_pass(self) -> list[npt.NDArray[np.float64]]:
        """Return the times that count, pass by pass."""
        return [self.times_s[part][self.counted[part]] for part in self.passes]


def fold_samples(
    case: Case, samples: CaseSamples, common: Edges | None
) -> Folded:
    """Return the times by the fold of the case's mode, by ``local_max`` where clocks do not do.

    ``common`` are the samples on the global clock, None if there is none. Every pass has a timed
    sample.
    """
    if case.mode == "pipelined":
        return _folded("per_call", samples, local_max_ns(samples) / case.batch)
    if case.mode != "isolated":
        return _folded("local_max", samples, local_max_ns(samples))
    if common is not None and not np.any(overtaking_ns(case, common) > 0):
        folded = _folded("global", samples, global_ns(common))
        median_s = median(folded.times_s[folded.counted])
        if common.bound_ns <= MOST_CLOCK_ERROR * median_s * 1e9:
            return folded
    return _folded("local_max", samples, local_max_ns(samples), clock_unreliable=True)


def _folded(
    fold: str, samples: CaseSamples, times_ns: npt.NDArray[np.int64] | npt.NDArray[np.float64], *,
    clock_unreliable: bool = False,
) -> Folded:
    times_s = np.asarray(times_ns / 1e9, dtype=np.float64)
    timed = is_timed(samples)
    counted, unsteady = timed.copy(), False
    passes = tuple(pass_slices(samples))
    for part in passes:
        timed_at = part.start + np.flatnonzero(timed[part])
        cut = steady_from(times_s[timed_at])
        counted[timed_at[:cut]] = False
        unsteady |= 0 < cut == _latest_cut(timed_at.size)
    n_steady = int(counted.sum())
    _level(counted, passes)
    return Folded(fold, times_s, counted, int(timed.sum()) - n_steady,
                  n_steady - int(counted.sum()), passes, unsteady, clock_unreliable)


def _level(counted: npt.NDArray[np.bool_], passes: Sequence[slice]) -> None:
    """Leave as many samples counted in each pass as in the shortest one, evenly spread over it."""
    counted_at = [part.start + np.flatnonzero(counted[part]) for part in passes]
    least = min(indices.size for indices in counted_at)
    for indices in counted_at:
        kept = ((np.arange(least) + 0.5) * indices.size / least).astype(np.intp)
        counted[indices] = False
        counted[indices[kept]] = True


def _latest_cut(n: int) -> int:
    """Return the largest cut that `steady_from` looks for among ``n`` samples."""
    return n // BATCH // 2 * BATCH

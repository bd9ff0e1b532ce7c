"""Whether the exchange of gradients varies more from step to step than the computing before it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive.slow_ranks import CLEAR_PART
from hpcbench.reduce.comparison import Comparison, clear
from hpcbench.statistics.dispersion import MIN_N, chance_of_excess, dispersion

_SYNC = "sync"
Times = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class SyncVariance:
    """How the time of the exchange varies, beside that of computing in the same steps.

    The exchange counts from the moment at which the last rank has its gradients: waiting for a slow
    rank is not in it.

    Attributes:
        median_s: the median of the exchange.
        cv, robust_cv: of the exchange (`statistics.dispersion.Dispersion`).
        compute_cv, compute_robust_cv: the same of the ranks' own work, the median of the ranks.
        deviation_share: the mean absolute deviation of the exchange over the median step.
        chance: how likely chance makes it vary more than AS_MUCH times as much as computing.
        is_high: whether that holds among all comparisons of the report, and ``deviation_share`` is
            above CLEAR_PART.
    """

    median_s: float
    cv: float
    robust_cv: float
    compute_cv: float
    compute_robust_cv: float
    deviation_share: float
    chance: float
    is_high: bool


def sync_variance(
    sync_s: Times, compute_s: Times, step_s: Times,
) -> tuple[SyncVariance | None, str]:
    """Return how the exchange (step,) varies beside computing (rank, step); or None, and why.

    ``step_s`` (step,) is the time of whole steps.
    """
    n = sync_s.size
    if n < MIN_N:
        return None, f"{n} steps are fewer than {MIN_N}"
    if np.median(sync_s) <= 0 or np.median(compute_s, axis=1).min() <= 0:
        return None, "its stamps are too coarse: a median time is 0"
    sync, computes = dispersion(sync_s), [dispersion(times_s) for times_s in compute_s]
    reference = np.mean([_relative(times_s) for times_s in compute_s], axis=0)
    chance = chance_of_excess(_relative(sync_s), reference)
    share = sync.deviation_s / float(np.median(step_s))
    return SyncVariance(
        median_s=sync.median_s, cv=sync.cv, robust_cv=sync.robust_cv,
        compute_cv=float(np.median([one.cv for one in computes])),
        compute_robust_cv=float(np.median([one.robust_cv for one in computes])),
        deviation_share=share, chance=chance, is_high=share >= CLEAR_PART), ""


def variance_comparison(sync: SyncVariance | None) -> Iterator[Comparison]:
    """Yield the comparison of the exchange with computing, where there is one."""
    if sync is not None:
        yield Comparison(_SYNC, sync.chance)


def settled_variance(
    sync: SyncVariance | None, comparisons: Sequence[Comparison],
) -> SyncVariance | None:
    """Return how the exchange varies, high only where that holds in the whole report."""
    if sync is None:
        return None
    return replace(sync, is_high=sync.is_high and clear(comparisons, _SYNC) is not None)


def _relative(times_s: Times) -> Times:
    """Return the absolute deviations from the median, relative to it."""
    middle = np.median(times_s)
    return np.asarray(np.abs(times_s - middle) / middle)

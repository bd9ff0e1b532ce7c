"""Times of a case that follow from its stamps; none is stored per sample.

Definitions (docs/method.md), for sample k and ranks r, after ReproMPI and Hoefler and Belli (2015):
start s_rk, end e_rk; arrays of stamps are int64 ns of shape (rank, sample), results int64 ns of
shape (sample,) unless they say otherwise. Where ``groups`` equal groups of consecutive ranks run
the collective at once, a time within a group is that of the group for which it is longest.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.clocks import GlobalStamps
from hpcbench.reduce.results import CaseSamples

Times = npt.NDArray[np.int64]


def waits_ns(samples: CaseSamples) -> Times:
    """Return e_rk - s_rk, (rank, sample): how long each rank was in the call. Needs no clock.

    In a collective the ranks that come early wait, so the rank all waited for has the shortest.
    """
    return samples.end_ns - samples.start_ns


def local_max_ns(samples: CaseSamples) -> Times:
    """Return max_r (e_rk - s_rk)."""
    return np.asarray(waits_ns(samples).max(axis=0))


def global_ns(stamps: GlobalStamps) -> Times:
    """Return max_r e_rk - min_r s_rk: from the first rank's start to the last one's end."""
    return np.asarray(stamps.end_ns.max(axis=0) - stamps.start_ns.min(axis=0))


def last_in_ns(stamps: GlobalStamps, groups: int = 1) -> Times:
    """Return max_r e_rk - max_r s_rk: what is left when the last rank has arrived."""
    ends, starts = _grouped(stamps.end_ns, groups), _grouped(stamps.start_ns, groups)
    return np.asarray((ends.max(axis=1) - starts.max(axis=1)).max(axis=0))


def imbalance_ns(stamps: GlobalStamps, groups: int = 1) -> Times:
    """Return max_r s_rk - min_r s_rk: how unevenly the ranks arrived."""
    return np.asarray(np.ptp(_grouped(stamps.start_ns, groups), axis=1).max(axis=0))


def lateness_ns(stamps: GlobalStamps) -> npt.NDArray[np.float64]:
    """Return s_rk - median_r s_rk, float64 ns (rank, sample): negative for ranks that are early."""
    first_ns = stamps.start_ns.min(axis=0)
    since_first = (stamps.start_ns - first_ns).astype(np.float64)
    return np.asarray(since_first - np.median(since_first, axis=0))


def quickest_ranks(samples: CaseSamples) -> Times:
    """Return argmin_r (e_rk - s_rk) as a rank, (sample,): the rank that the others waited for."""
    return np.asarray(np.array(samples.ranks)[np.argmin(waits_ns(samples), axis=0)])


def overtaken_ns(stamps: GlobalStamps, groups: int = 1) -> Times:
    """Return max_r s_rk - min_r e_rk, (group, sample): positive if a rank left before the last
    one of its group had come, which no collective allows in which every rank needs all others.
    """
    ends, starts = _grouped(stamps.end_ns, groups), _grouped(stamps.start_ns, groups)
    return np.asarray(starts.max(axis=1) - ends.min(axis=1))


def _grouped(stamps_ns: Times, groups: int) -> Times:
    """Return (group, rank of the group, sample)."""
    return stamps_ns.reshape(groups, -1, stamps_ns.shape[-1])

"""Times of a case that follow from its stamps; none is stored per sample.

Definitions (docs/method.md), after ReproMPI (Hunold and Carpen-Amarie, TPDS 2016): s_rk and e_rk
are start and end of sample k on rank r. Times are int64 ns of shape (sample,) unless said
otherwise. ``groups`` equal groups of consecutive ranks may run the collective at once. Then a time
within a group is that of the group for which it is longest.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.clocks import GlobalStamps
from hpcbench.reduce.results import CaseSamples

Times = npt.NDArray[np.int64]
Fold = Callable[..., Times]
"""`numpy.min` or `numpy.max`."""
_CACHED_VALUES = 8192


def waits_ns(samples: CaseSamples) -> Times:
    """Return e_rk - s_rk, (rank, sample): how long each rank was in the call. Needs no clock.

    In a collective the ranks that come early wait, so the rank all waited for has the shortest.
    """
    return samples.end_ns - samples.start_ns


def folded_waits_ns(fold: Fold, samples: CaseSamples) -> Times:
    """Return the minimum or the maximum over ranks of e_rk - s_rk."""
    parts = [fold(samples.end_ns[some] - samples.start_ns[some], axis=0)
             for some in _some_ranks(samples)]
    return np.asarray(fold(np.stack(parts), axis=0))


def local_max_ns(samples: CaseSamples) -> Times:
    """Return max_r (e_rk - s_rk)."""
    return folded_waits_ns(np.max, samples)


def times_quickest(samples: CaseSamples, chosen: npt.NDArray[np.bool_]) -> Times:
    """Return (rank,): in how many of the chosen samples each rank had the shortest e_rk - s_rk."""
    shortest_ns = folded_waits_ns(np.min, samples)
    return np.concatenate([
        np.sum((samples.end_ns[some] - samples.start_ns[some] == shortest_ns) & chosen, axis=1)
        for some in _some_ranks(samples)])


def _some_ranks(samples: CaseSamples) -> Iterator[slice]:
    """Yield all ranks, some at a time, so that differences stay in the processor's cache."""
    at_once = max(1, _CACHED_VALUES // max(1, samples.start_ns.shape[1]))
    for first in range(0, len(samples.ranks), at_once):
        yield slice(first, first + at_once)


@dataclass(frozen=True, slots=True)
class Edges:
    """The earliest and latest stamps of each group on the global clock, (group, sample).

    Differences between them are known to ``bound_ns``. Where steps are looked into, ``late_ns`` is
    s_rk - min_r s_rk, (rank, sample).
    """

    first_start_ns: Times
    last_start_ns: Times
    first_end_ns: Times
    last_end_ns: Times
    bound_ns: float
    late_ns: Times | None = None


def edges(stamps: GlobalStamps, groups: int = 1, *, each: bool = False) -> Edges:
    """Return what all times on the global clock are made of, and of ``each`` rank how late it was.
    """
    starts, ends = (stamps_ns.reshape(groups, -1, stamps_ns.shape[-1])
                    for stamps_ns in (stamps.start_ns, stamps.end_ns))
    return Edges(starts.min(axis=1), starts.max(axis=1), ends.min(axis=1), ends.max(axis=1),
                 stamps.bound_ns,
                 stamps.start_ns - stamps.start_ns.min(axis=0) if each else None)


def joined(parts: Sequence[Edges | None]) -> Edges | None:
    """Return the samples of several passes one after another; None if those of one are None."""
    known = [part for part in parts if part is not None]
    if len(known) < len(parts) or not known:
        return None

    def whole(name: str) -> Times:
        return np.concatenate([getattr(part, name) for part in known], axis=1)

    return Edges(whole("first_start_ns"), whole("last_start_ns"), whole("first_end_ns"),
                 whole("last_end_ns"), max(part.bound_ns for part in known),
                 whole("late_ns") if known[0].late_ns is not None else None)


def global_ns(stamps: Edges) -> Times:
    """Return max_r e_rk - min_r s_rk over all ranks: from the first start to the last end."""
    return np.asarray(stamps.last_end_ns.max(axis=0) - stamps.first_start_ns.min(axis=0))


def last_in_ns(stamps: Edges) -> Times:
    """Return max_r e_rk - max_r s_rk: what is left when the last rank has arrived."""
    return np.asarray((stamps.last_end_ns - stamps.last_start_ns).max(axis=0))


def imbalance_ns(stamps: Edges) -> Times:
    """Return max_r s_rk - min_r s_rk: how unevenly the ranks arrived."""
    return np.asarray((stamps.last_start_ns - stamps.first_start_ns).max(axis=0))


def overtaken_ns(stamps: Edges) -> Times:
    """Return max_r s_rk - min_r e_rk, (group, sample).

    Positive if a rank left before the last one of its group had come: impossible in a collective
    in which every rank needs all others.
    """
    return stamps.last_start_ns - stamps.first_end_ns

"""Which rank is late where gradients are exchanged.

The time in the exchange does not show it, because all ranks leave together. The arrival does.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import Arrival, CaseSamples
from hpcbench.trace.schema import ARRIVAL

Times = npt.NDArray[np.int64]


def arrivals_of(
    samples: CaseSamples, late_ns: Times, counted: npt.NDArray[np.bool_]
) -> tuple[Arrival, ...]:
    """Return the arrivals at every bucket, in order; none of a single rank.

    ``late_ns``, (rank, sample), is how late each rank began its step.
    """
    if len(samples.ranks) == 1:
        return ()
    return tuple(_arrivals(samples, late_ns[:, counted], counted))


def _arrivals(
    samples: CaseSamples, late_ns: Times, counted: npt.NDArray[np.bool_]
) -> Iterator[Arrival]:
    for name, values in samples.phases.items():
        if not name.startswith(ARRIVAL):
            continue
        arrived_ns = late_ns + values[:, counted]
        is_last = arrived_ns == arrived_ns.max(axis=0)
        row = int(np.argmax(is_last.mean(axis=1)))
        behind_ns = arrived_ns[row] - np.median(np.delete(arrived_ns, row, axis=0), axis=0)
        yield Arrival(
            bucket=int(name.removeprefix(ARRIVAL)),
            median_s=tuple((np.median(arrived_ns, axis=1) / 1e9).tolist()),
            last_rank=samples.ranks[row], last_share=float(is_last[row].mean()),
            behind_s=float(np.median(behind_ns[is_last[row]])) / 1e9)

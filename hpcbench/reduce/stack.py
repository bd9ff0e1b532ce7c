"""Records of all ranks stacked to (rank, iteration), and what is computed from the stack."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import CaseSamples, Statistics
from hpcbench.statistics.order import median, percentile, percentile_if_enough
from hpcbench.trace.arena import Empty
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record

Pass = Mapping[int, Record]
"""The records of one pass of one case, by rank."""
Fold = Callable[..., npt.NDArray[np.int64]]
"""`numpy.min` or `numpy.max`."""
_CACHED_VALUES = 8192


def stack_samples(passes: Mapping[int, Pass], empty: Empty) -> CaseSamples | None:
    """Return the stamps of all passes, or None where they do not fill (rank, iteration).

    ``passes`` maps pass index to its records; ``empty`` makes the arrays. None means that nothing
    was stamped, or that ranks stamped different numbers of iterations; nothing is ever filled up.
    """
    stamped = {index: records for index, records in sorted(passes.items())
               if any(len(record.samples) for record in records.values())}
    members = {tuple(sorted(records)) for records in stamped.values()}
    if len(members) != 1 or not all(map(_is_rectangular, stamped.values())):
        return None
    (ranks,) = members
    counts = [len(records[ranks[0]].samples) for records in stamped.values()]
    rows = [records[rank].samples for rank in ranks for records in stamped.values()]
    columns = {name: empty((len(ranks), sum(counts))) for name in SAMPLE_COLUMNS}
    for at, column in enumerate(columns.values()):
        np.concatenate([samples[:, at] for samples in rows], out=column.reshape(-1))
    pass_index = np.repeat(np.array(list(stamped), dtype=np.int64), counts)
    return CaseSamples(ranks=ranks, pass_index=pass_index, **columns)


def _is_rectangular(records: Pass) -> bool:
    return len({len(record.samples) for record in records.values()}) == 1


def is_timed(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return (iteration,): whether the iteration counts, that is, is no warm-up on any rank."""
    any_rank = np.bitwise_or.reduce(samples.flags, axis=0)
    return np.asarray(any_rank & Flag.WARMUP == 0, dtype=np.bool_)


def iteration_times_s(samples: CaseSamples) -> npt.NDArray[np.float64]:
    """Return the time of each timed iteration: the maximum over ranks of end - start."""
    durations_ns = folded_durations_ns(np.max, samples)[is_timed(samples)]
    return np.asarray(durations_ns / 1e9, dtype=np.float64)


def folded_durations_ns(fold: Fold, samples: CaseSamples) -> npt.NDArray[np.int64]:
    """Return (iteration,): the minimum or the maximum over ranks of end - start.

    Some ranks at a time, so that the differences stay in the processor's cache.
    """
    at_once = max(1, _CACHED_VALUES // max(1, samples.start_ns.shape[1]))
    parts = [fold(samples.end_ns[rank:rank + at_once] - samples.start_ns[rank:rank + at_once],
                  axis=0) for rank in range(0, len(samples.ranks), at_once)]
    return np.asarray(fold(np.stack(parts), axis=0))


def summarise(times_s: npt.NDArray[np.float64]) -> Statistics:
    """Return the order statistics of at least one time."""
    return Statistics(
        n=times_s.size,
        min_s=float(times_s.min()),
        p5_s=percentile_if_enough(times_s, 5),
        p25_s=percentile(times_s, 25),
        median_s=median(times_s),
        p75_s=percentile(times_s, 75),
        p95_s=percentile_if_enough(times_s, 95),
        p99_s=percentile_if_enough(times_s, 99),
        max_s=float(times_s.max()),
    )

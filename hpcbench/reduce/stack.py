"""Records of all ranks stacked to (rank, iteration), and what is computed from the stack."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.results import CaseSamples, Statistics
from hpcbench.statistics.order import median, percentile, percentile_if_enough
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record

Pass = Mapping[int, Record]
"""The records of one pass of one case, by rank."""


def stack_samples(passes: Mapping[int, Pass]) -> CaseSamples | None:
    """Return the stamps of all passes, or None where they do not fill (rank, iteration).

    ``passes`` maps pass index to its records. None means that nothing was stamped, or that ranks
    stamped different numbers of iterations; nothing is ever filled up.
    """
    stamped = {index: records for index, records in sorted(passes.items())
               if any(len(record.samples) for record in records.values())}
    members = {tuple(sorted(records)) for records in stamped.values()}
    if len(members) != 1 or not all(map(_is_rectangular, stamped.values())):
        return None
    (ranks,) = members
    counts = [len(records[ranks[0]].samples) for records in stamped.values()]
    columns = {name: _stacked([[records[rank].samples[:, at] for rank in ranks]
                               for records in stamped.values()])
               for at, name in enumerate(SAMPLE_COLUMNS)}
    pass_index = np.repeat(np.array(list(stamped), dtype=np.int64), counts)
    return CaseSamples(ranks=ranks, pass_index=pass_index, **columns)


def _stacked(passes: Sequence[Sequence[npt.NDArray[np.int64]]]) -> npt.NDArray[np.int64]:
    """Return (rank, iteration) of the rows that each rank has in each pass."""
    blocks = [np.stack(rows) for rows in passes]
    return blocks[0] if len(blocks) == 1 else np.concatenate(blocks, axis=1)


def _is_rectangular(records: Pass) -> bool:
    return len({len(record.samples) for record in records.values()}) == 1


def is_timed(samples: CaseSamples) -> npt.NDArray[np.bool_]:
    """Return (iteration,): whether the iteration counts, that is, is no warm-up on any rank."""
    return np.asarray(np.all(samples.flags & Flag.WARMUP == 0, axis=0), dtype=np.bool_)


def iteration_times_s(samples: CaseSamples) -> npt.NDArray[np.float64]:
    """Return the time of each timed iteration: the maximum over ranks of end - start."""
    durations_ns = (samples.end_ns - samples.start_ns)[:, is_timed(samples)]
    return np.asarray(durations_ns.max(axis=0) / 1e9, dtype=np.float64)


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

"""How much longer profiled samples take than measured ones of the same case."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hpcbench.profiling.rank_file import RankProfile
from hpcbench.reduce.clocks import RankClocks
from hpcbench.reduce.fold import edges, extreme_waits, fold_samples
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.stack import is_timed
from hpcbench.statistics.order import median
from hpcbench.trace.schema import SAMPLE_COLUMNS


@dataclass(frozen=True, slots=True)
class Overhead:
    """Medians in seconds of profiled and of measured samples, each of so many, by one ``fold``.

    ``ratio`` is profiled over measured.
    """

    profiled_s: float
    n_profiled: int
    measured_s: float
    n_measured: int
    fold: str

    ratio: float


def overhead(
    item: CaseResult, ranks: Sequence[RankProfile], clocks: RankClocks,
) -> Overhead | None:
    """Return the overhead of profiling a case; None where the two cannot be compared.

    The profiled samples are folded over ranks as the measured ones are (docs/method.md).
    """
    if item.statistics is None or item.timing is None or len({len(one.rows) for one in ranks}) != 1:
        return None
    samples = _stacked(ranks)
    if not is_timed(samples).any():
        return None
    stamps = clocks.stamps(samples)
    work = item.case.workload
    common = edges(stamps, work.groups, work.group_stride) if stamps else None
    folded = fold_samples(item.case, samples, extreme_waits(samples), common)
    if folded.fold != item.timing.fold:
        return None
    times_s = folded.times_s[is_timed(samples)]
    profiled_s, measured_s = median(times_s), item.statistics.median_s
    return Overhead(profiled_s, times_s.size, measured_s, item.statistics.n, folded.fold,
                    profiled_s / measured_s)


def _stacked(ranks: Sequence[RankProfile]) -> CaseSamples:
    """Return the profiled samples as those of one pass of a case are."""
    rows = np.array([one.rows for one in ranks], dtype=np.int64)  # (rank, sample, column)
    columns: dict[str, Any] = {name: rows[:, :, at] for at, name in enumerate(SAMPLE_COLUMNS)}
    first = np.zeros(rows.shape[1], dtype=np.int64)
    return CaseSamples(ranks=tuple(one.rank for one in ranks), launch=first, pass_index=first,
                       phases={}, **columns)

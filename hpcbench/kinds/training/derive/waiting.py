"""What a training tells of waiting: stalls, the exchange of gradients, and each rank's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from hpcbench.kinds.training.derive.slow_ranks import BLOCKING
from hpcbench.kinds.training.derive.stalls import stamps_of, why_not
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.waiting import EXCHANGE, OWN_WORK, RankWork, Variation, Waiting
from hpcbench.statistics.standing_out import pass_medians

if TYPE_CHECKING:
    from hpcbench.kinds.training.derive.deriver import TrainingRecord

Table = tuple[tuple[float, ...], ...]


def waiting(item: CaseResult, record: TrainingRecord | None) -> Waiting | None:
    """Return how much of a step ranks wait, and how the exchange varies; None of one rank."""
    known = record.stalls if record else None
    if known is None or item.case.world_size == 1:
        return None
    share, sync = known.stall_share, known.sync
    variation = None if sync is None else Variation(
        sync.cv, sync.compute_cv, sync.deviation_share, sync.chance, sync.is_high)
    missing = known.missing or known.sync_missing
    if share is None:
        return Waiting(variation=variation, missing=missing)
    return Waiting(share.value, share.low, share.high, variation, missing)


def rank_work(
    item: CaseResult, read: Callable[[], CaseSamples | None],
) -> RankWork | None:
    """Return each rank's own work, from steps without communication; or its exchange, from stamps.

    ``read`` reads the samples, which takes time.
    """
    work, steps = training_of(item.case), item.timing.steps if item.timing else None
    if steps is None or len(steps.ranks) < 2 or work.communication == "only":
        return None
    if not work.trains:
        passes = [one for one in steps.pass_step_s if one]
        stages = tuple(rank // work.tp % work.pp for rank in steps.ranks)
        return RankWork(OWN_WORK, steps.ranks, tuple(zip(*passes, strict=True)), stages,
                        "stage" if work.pp > 1 else "")
    samples = read() if item.case.backend != BLOCKING and any(
        phase.name == "exchange" for phase in steps.phases) else None
    if samples is None or why_not(item.case, work, samples):
        return None
    return _exchange(item, samples)


def _exchange(item: CaseResult, samples: CaseSamples) -> RankWork | None:
    """Return how long the exchange takes each rank from the moment at which all are ready.

    Moments count from the rank's own begin of the step, so start skew of ranks is in it.
    """
    stamps = stamps_of(item.case, samples)
    after_s = stamps.phase_s["exchange"] - (stamps.ready_s.max(axis=0) - stamps.ready_s)
    taken, ready = (pass_medians(times, stamps.passes) for times in (after_s, stamps.ready_s))
    if taken is None or ready is None:
        return None
    return RankWork(EXCHANGE, stamps.ranks, _table(taken), (0,) * len(stamps.ranks), "",
                    _table(ready))


def _table(values: npt.NDArray[np.float64]) -> Table:
    return tuple(map(tuple, values.tolist()))

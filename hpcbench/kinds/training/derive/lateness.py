"""Which rank of a training others wait for within a step, for the diagnosis of a report."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from hpcbench.kinds.training.derive.slow_ranks import READY
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.lateness import Lateness
from hpcbench.reduce.results import CaseResult

if TYPE_CHECKING:
    from hpcbench.kinds.training.derive.deriver import TrainingRecord

PIPELINE = ("stages of a pipeline have different work: a slow stage on every replica is uneven "
            "partitioning, not a slow rank")


def lateness(item: CaseResult, record: TrainingRecord | None) -> Iterator[Lateness]:
    """Yield when ranks have their own last gradient, and in which phase the last one is late."""
    known, work = record.stalls if record else None, training_of(item.case)
    if record is None or known is None or item.case.world_size == 1:
        return
    ready = next((one for one in record.comparisons if one.what == READY), None)
    if work.pp > 1:
        yield Lateness(missing=PIPELINE)
    elif known.missing or ready is None or ready.chance is None:
        yield Lateness(missing=known.missing or known.last_missing
                       or "nothing compared when its ranks are ready")
    else:
        last = known.last
        yield Lateness(ready, last.phase if last else "", last.phase_s if last else 0.0)

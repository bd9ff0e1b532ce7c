"""What the comparison of a training with a single process came to, in words."""

from __future__ import annotations

from hpcbench.kinds.training.derive.deriver import TrainingRecord
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import CaseResult


def parity_text(item: CaseResult, record: TrainingRecord) -> str | None:
    """Return the largest error in % of what is allowed, or why there is none.

    None if the case did not get to it.
    """
    work = training_of(item.case)
    if not work.trains:
        return "n/a: no communication" if work.communication == "off" else (
            "n/a: communication only")
    if item.n_wrong is None:
        return None if item.case.validate else "unchecked"
    if item.n_wrong:
        return f"{item.n_wrong} wrong"
    return "ok" if record.parity_share is None else f"{100 * record.parity_share:.3g}%"

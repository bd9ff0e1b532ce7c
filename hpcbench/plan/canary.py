"""The canary: one small case that is measured again and again, to see the machine drift."""

from __future__ import annotations

from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import Case


def planned_canary(world_size: int, timeout_s: float = 0.0, wakeup_s: float = 0.0) -> Case | None:
    """Return the canary of the first kind that offers one, None if none does.

    It is no case of the plan: it has a fixed count of its own, takes part in no pass and in no
    total, and is recorded as notes. Kinds of plug-ins are asked last, so installing one changes
    nothing.
    """
    specs = sorted(kinds().values(), key=lambda spec: spec.is_plugin)
    offered = (spec.planner().canary(world_size, timeout_s, wakeup_s) for spec in specs)
    return next((case for case in offered if case is not None), None)

"""The canary: a small all_reduce that is measured again and again, to see the machine drift."""

from __future__ import annotations

from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.plan.case import CANARY_ID, Case

_BYTES = 64 * 1024
_WARMUP, _ITERATIONS = 3, 20


def canary_case(world_size: int, timeout_s: float, wakeup_s: float) -> Case:
    """Return an all_reduce of 64 KiB on gloo over all ranks: what every worker can do.

    It is no case of the plan: it has a fixed count of its own, takes part in no pass and in no
    total, and is recorded as notes.
    """
    work = Collective(
        collective="all_reduce", dtype="fp32", op="sum", root=None, in_place=True,
        requested_bytes=_BYTES, size_bytes=_BYTES, count=_BYTES // 4)
    return Case(
        case_id=CANARY_ID, index=-1, block=CANARY_ID, kind="collective", backend="gloo",
        device="cpu", world_size=world_size, env=(), mode="barrier_start", warmup=_WARMUP,
        iterations=_ITERATIONS, validate=True, timeout_s=timeout_s, wakeup_s=wakeup_s,
        workload=work, skip=None, needs=(), estimate_s=0.0, memory_bytes=3 * _BYTES,
        min_iterations=_ITERATIONS)

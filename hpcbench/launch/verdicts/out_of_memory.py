"""What would have fitted, where the kernel killed a worker for memory."""

from __future__ import annotations

from dataclasses import replace

import psutil

from hpcbench.kinds.registry import planner_of
from hpcbench.launch.workers.observation import Observation
from hpcbench.launch.workers.processes import KILLED_FOR_MEMORY
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.plan.case import Case


def with_advice(observation: Observation, case: Case, local_size: int) -> Observation:
    """Add to a kill for memory what was predicted; ``local_size`` ranks share the limit."""
    evidence = observation.evidence
    if KILLED_FOR_MEMORY not in evidence.cause:
        return observation
    limit = cgroup(KernelFiles())["memory_bytes"]
    share = (limit if isinstance(limit, int) else psutil.virtual_memory().total) // local_size
    advice = planner_of(case).advice(case.workload, share)
    if not advice:
        return observation
    cause = f"{evidence.cause}: {share / 1e9:.3g} GB for each rank; {advice}"
    return replace(observation, evidence=replace(evidence, cause=cause))

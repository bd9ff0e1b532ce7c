"""What would have fitted, of a training whose worker the kernel killed for memory."""

from __future__ import annotations

from dataclasses import replace

import psutil

from hpcbench.kinds.training.plan.fits import advice
from hpcbench.launch.workers.observation import Sighting
from hpcbench.launch.workers.processes import KILLED_FOR_MEMORY
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Training


def with_advice(sighting: Sighting, case: Case, local_size: int) -> Sighting:
    """Add to a kill for memory what was predicted; ``local_size`` ranks share the limit."""
    evidence, work = sighting.evidence, case.workload
    if KILLED_FOR_MEMORY not in evidence.cause or not isinstance(work, Training):
        return sighting
    limit = cgroup(KernelFiles())["memory_bytes"]
    share = (limit if isinstance(limit, int) else psutil.virtual_memory().total) // local_size
    cause = f"{evidence.cause}: {share / 1e9:.3g} GB for each rank; {advice(work, share)}"
    return replace(sighting, evidence=replace(evidence, cause=cause))

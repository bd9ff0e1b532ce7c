"""What the machine adds to evidence: a network interface that is down, memory that ran out."""

from __future__ import annotations

from dataclasses import dataclass, replace

import psutil

from hpcbench.kinds.registry import planner_of
from hpcbench.launch.verdicts.verdict import Evidence, Outcome
from hpcbench.launch.workers.observation import Observation
from hpcbench.launch.workers.processes import KILLED_FOR_MEMORY
from hpcbench.measure.allocation import cgroup
from hpcbench.measure.kernel_files import KernelFiles
from hpcbench.plan.case import Case


@dataclass(frozen=True, slots=True)
class RankLocation:
    """This rank's host, "" where all ranks have the same, and the interface that it is to use."""

    host: str = ""
    interface: str | None = None

    def sign(self, evidence: Evidence) -> Evidence:
        """Return evidence that says where it is from; of a case gone wrong, if the link is down."""
        broken = self.host and evidence.outcome not in (Outcome.OK, Outcome.HALTED)
        return replace(evidence, host=self.host,
                       link=link_problem(self.interface) if broken and self.interface else "")


def link_problem(interface: str) -> str:
    """Return what is wrong with a network interface: gone, switched off, without a cable; or ""."""
    state = psutil.net_if_stats().get(interface)
    if state is None:
        return f"network interface {interface} is gone"
    return "" if state.isup else f"network interface {interface} is down"


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

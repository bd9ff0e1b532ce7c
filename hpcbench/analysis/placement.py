"""On how many nodes and cores the ranks of a case ran, as far as results of a run tell."""

from __future__ import annotations

import math

from hpcbench.plan.case import Case
from hpcbench.reduce.results import RunInfo

_EVENLY = 1.001
"""Quotients of ranks and cores are this far from a whole number at most by rounding."""


def nodes_of(run: RunInfo, case: Case) -> int:
    """Return how many nodes a case used: its ranks are the first of the job, spread evenly."""
    a_node = math.ceil(run.world_size / max(len(run.nodes), 1))
    return math.ceil(case.world_size / a_node)


def ranks_a_core(run: RunInfo, case: Case, device: str) -> float | None:
    """Return how many ranks of a case share a core where most do; None if nobody knows.

    1 or less is none. Ranks on GPUs wait for these, not for cores. Those of a case of fewer ranks
    than the job share cores in proportion. Results of older versions tell only the cores of one
    rank; if these are all of the machine's, the ranks of its node share them.
    """
    if not device.startswith("cpu"):
        return 0.0
    process, online = run.environment.get("process", {}), _online(run)
    on_node = case.world_size / nodes_of(run, case)
    told = process.get("ranks_a_core")
    if isinstance(told, int | float):
        most = math.ceil(run.world_size / max(len(run.nodes), 1))
        return float(told) if told <= 1 else told * on_node / most
    cores = process.get("affinity_cpus")
    if not isinstance(cores, int) or cores < 1:
        return None
    return on_node / cores if online is None or cores >= online or on_node <= cores else None


def shares_cores(run: RunInfo, case: Case, device: str) -> bool:
    """Return whether it is known that ranks of a case wait for one another's cores."""
    known = ranks_a_core(run, case, device)
    return known is not None and known > _EVENLY


def _online(run: RunInfo) -> int | None:
    """Return how many cores the machine has, of a text such as ``0-3,8-11``."""
    text = run.environment.get("cpu", {}).get("online")
    if not isinstance(text, str):
        return None
    ends = [part.partition("-") for part in text.split(",") if part]
    return sum(int(last or first) - int(first) + 1 for first, _, last in ends)

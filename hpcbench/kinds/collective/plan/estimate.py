"""How long a case of a collective may take: an assumption, never a result."""

from __future__ import annotations

import math

from hpcbench.config.schema import Hardware
from hpcbench.kinds.collective.plan.workload import Collective
from hpcbench.plan.estimate import ALPHA_S, CASE_S, bytes_per_s, device_kind

CHECKS = 2
"""Checked iterations of a case, each read once at CHECK_BYTES_PER_S."""
CHECK_BYTES_PER_S = 5e8


def estimate_case_s(
    work: Collective, device: str, world_size: int, iterations: int, validate: bool,
    hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case, warm-ups counted in ``iterations``."""
    kind = device_kind(device)
    steps = math.ceil(math.log2(world_size)) if world_size > 1 else 0
    iteration_s = (2 * ALPHA_S[kind] * steps
                   + _moved_bytes(work, world_size) / bytes_per_s(kind, hardware))
    checks_s = CHECKS * work.size_bytes / CHECK_BYTES_PER_S if validate else 0.0
    return CASE_S + iterations * iteration_s + checks_s


def _moved_bytes(work: Collective, world_size: int) -> float:
    """Return the bytes a rank sends in a ring."""
    return work.traits.ring_rounds * work.size_bytes * (world_size - 1) / world_size

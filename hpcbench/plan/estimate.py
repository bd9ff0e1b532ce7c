"""How long a plan may take: an assumption to size a job with, never a result.

Time of an iteration = alpha x ceil(log2 n) + moved bytes / beta, and one more alpha term for the
barrier it starts after; of a primitive and of a training step also its flops / rate. Alpha, beta
and the rate are assumed, per device: for the CPU what gloo does with four ranks on two shared
cores, so a real node is faster. `hardware.network_bandwidth_gbps` replaces beta if it is given.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from types import MappingProxyType

from hpcbench.config.schema import Hardware
from hpcbench.kinds.primitive.plan.demands import reference_flops
from hpcbench.kinds.training.plan.predict import Prediction
from hpcbench.plan.workload import Collective, Primitive, Training, Workload

CASE_S = 0.03
"""Assumed: agreement, buffers, expected results, journal."""
COMPILE_S = 10.0
"""Assumed of a case that compiles when it is set up: torch.compile of a few operations."""
TRAINING_GRAPHS = 2
"""Of a training that is compiled: a block, as all others are like it, and the loss."""
CHECKS = 2
"""Checked iterations of a case, each read once at CHECK_BYTES_PER_S."""
CHECK_BYTES_PER_S = 5e8

MOST_OF_TIMEOUT = 0.5
"""Of a case's time limit for its timed loop: set-up, checks and a slow sample come on top."""

_ALPHA_S: Mapping[str, float] = MappingProxyType({"cpu": 1e-3, "cuda": 1e-4})
_FLOPS_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 2e10, "cuda": 1e14})
_BETA_BYTES_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 3e8, "cuda": 1e10})


def case_budget_s(budget_s: float, runnable: int, passes: int, launches: int) -> float:
    """Return the seconds that each run of a case may spend in its timed loop, if not fixed.

    ``budget_s`` of the job divided evenly; a case's least number of samples may take it longer.
    """
    return budget_s / max(runnable * passes * launches, 1)


def within_timeout_s(budget_s: float, timeout_s: float) -> float:
    """Return what a case may spend of its budget: a generous one must not be its time-out."""
    return min(budget_s, MOST_OF_TIMEOUT * timeout_s)


def estimate_case_s(
    work: Collective, device: str, world_size: int, iterations: int, validate: bool,
    hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case, warm-ups counted in ``iterations``."""
    kind = "cuda" if device == "cuda" else "cpu"
    steps = math.ceil(math.log2(world_size)) if world_size > 1 else 0
    iteration_s = (2 * _ALPHA_S[kind] * steps
                   + _moved_bytes(work, world_size) / _bytes_per_s(kind, hardware))
    checks_s = CHECKS * work.size_bytes / CHECK_BYTES_PER_S if validate else 0.0
    return CASE_S + iterations * iteration_s + checks_s


def estimate_primitive_s(
    work: Primitive, device: str, ranks: int, calls: int, validate: bool, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: products, wire, and the reference on the CPU."""
    kind = "cuda" if device == "cuda" else "cpu"
    call_s = (work.flops / _FLOPS_PER_S[kind] + len(work.calls) * _ALPHA_S[kind]
              + work.wire_bytes / _bytes_per_s(kind, hardware))
    check_s = reference_flops(work, ranks) / _FLOPS_PER_S["cpu"] if validate else 0.0
    return setup_s(work) + calls * call_s + check_s


def estimate_training_s(
    work: Training, expected: Prediction, device: str, calls: int, hardware: Hardware,
) -> float:
    """Return the assumed seconds of one case: set-up, its steps, and one more to check."""
    kind = "cuda" if device == "cuda" else "cpu"
    step_s = (expected.hardware_flops / _FLOPS_PER_S[kind] + expected.collectives * _ALPHA_S[kind]
              + expected.wire_bytes / _bytes_per_s(kind, hardware))
    return setup_s(work) + (calls + 1) * step_s


def setup_s(work: Workload) -> float:
    """Return the assumed seconds of a case outside its timed loop and its checks."""
    compiled = (work.compiles if isinstance(work, Primitive) else
                TRAINING_GRAPHS * work.compiles if isinstance(work, Training) else 0)
    return CASE_S + COMPILE_S * compiled


def _bytes_per_s(kind: str, hardware: Hardware) -> float:
    """Return beta: of the declared network, else the assumed one of a kind of device."""
    given = hardware.network_bandwidth_gbps
    return given * 1e9 / 8 if given else _BETA_BYTES_PER_S[kind]


def _moved_bytes(work: Collective, world_size: int) -> float:
    """Return the bytes a rank sends in a ring."""
    rounds = 2 if work.collective == "all_reduce" else 1
    return rounds * work.size_bytes * (world_size - 1) / world_size

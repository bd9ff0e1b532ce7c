"""How long a plan may take: an assumption to size a job with, never a result.

Time of an iteration = alpha x ceil(log2 n) + moved bytes / beta, and one more alpha term for the
barrier it starts after; of a primitive and of a training step also its flops / rate. Alpha, beta
and the rate are assumed, per device: for the CPU what gloo does with four ranks on two shared
cores, so a real node is faster. `hardware.network_bandwidth_gbps` replaces beta if it is given, but
for as many GPUs as `hardware.num_devices` says that a node has.

Set-up on a GPU was never measured: its constants are assumptions, as those of its rates are.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING

from hpcbench.plan.order import generations
from hpcbench.plan.workload import Workload

if TYPE_CHECKING:
    from hpcbench.config.schema import Hardware
    from hpcbench.plan.case import Case

CASE_S = 0.03
"""Assumed: agreement, buffers, expected results, journal."""
COMPILE_S = 10.0
"""Assumed of a case that compiles when it is set up: torch.compile of a few operations."""

DRAWN_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 4e7, "cuda": 5e8})
"""Random numbers a second, by who draws them. CPU: measured, one of two busy cores drew 41 million
normal ones (87 million when it was free). CUDA: assumed, about 20 passes over 8 bytes each at a
tenth of the memory bandwidth of an A100; `kinds.training.run.models.draw`."""
WORKERS_S: Mapping[str, float] = MappingProxyType({"cpu": 0.0, "cuda": 4.0})
"""Of new workers, for each generation in each pass. CPU: they are forked within milliseconds. CUDA:
assumed, 1 to 3 s for a context, 1 to 2 s for a communicator of NCCL."""

MOST_OF_TIMEOUT = 0.5
"""Of a case's time limit for its timed loop: set-up, checks and a slow sample come on top."""

ALPHA_S: Mapping[str, float] = MappingProxyType({"cpu": 1e-3, "cuda": 1e-4})
FLOPS_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 2e10, "cuda": 1e14})
_BETA_BYTES_PER_S: Mapping[str, float] = MappingProxyType({"cpu": 3e8, "cuda": 1e10})


def case_budget_s(budget_s: float, runnable: int, passes: int, launches: int) -> float:
    """Return the seconds each run of a case may spend in its timed loop, if not fixed."""
    return budget_s / max(runnable * passes * launches, 1)


def within_timeout_s(budget_s: float, timeout_s: float) -> float:
    """Return what a case may spend of its budget: a generous one must not be its time-out."""
    return min(budget_s, MOST_OF_TIMEOUT * timeout_s)


def setup_s(work: Workload, kind: str) -> float:
    """Return the assumed seconds of a case outside its timed loop and its checks."""
    return (CASE_S + COMPILE_S * work.features.compiled_graphs
            + work.features.drawn_numbers / DRAWN_PER_S[kind])


def workers_s(cases: Iterable[Case]) -> float:
    """Return the assumed seconds of new workers in one pass over these cases, in their order."""
    return sum(max(WORKERS_S[device_kind(case.device)] for case in generation.cases)
               for generation in generations(cases))


def device_kind(device: str) -> str:
    """Return ``cuda`` or ``cpu``: whose constants a device has."""
    return "cuda" if device == "cuda" else "cpu"


def bytes_per_s(kind: str, hardware: Hardware, ranks: int) -> float:
    """Return beta: of the declared network, else the assumed one of a kind of device.

    So many ranks on GPUs as a node is declared to have are taken to be on one node.
    """
    given, on_node = hardware.network_bandwidth_gbps, hardware.num_devices
    within = (kind == "cuda" and hardware.device_type in (None, kind)
              and on_node is not None and ranks <= on_node)
    return given * 1e9 / 8 if given and not within else _BETA_BYTES_PER_S[kind]

"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them.

Source of the factors: nccl-tests, doc/PERFORMANCE.md. A rate is derived once, from one time;
rates are never averaged (the mean of rates is not the rate of the mean time).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Rates in bytes/s; ``busbw`` is the rate that hardware peaks compare with."""

    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


def busbw_factor(collective: str, world_size: int) -> float | None:
    """Return busbw / algbw for ``world_size`` ranks; None for barrier, which moves no data.

    0 for one rank, also where nccl-tests says 1 (broadcast, reduce, send_recv): nothing crosses a
    link. Parts of different sizes have the factor of equal ones, as nccl-tests' alltoallv does.
    Raises KeyError for an unknown collective.
    """
    n = world_size
    factor = {
        "all_reduce": 2 * (n - 1) / n,
        "all_gather": (n - 1) / n,
        "reduce_scatter": (n - 1) / n,
        "all_to_all": (n - 1) / n,
        "gather": (n - 1) / n,
        "scatter": (n - 1) / n,
        "broadcast": 1.0,
        "reduce": 1.0,
        "send_recv": 1.0,
        "barrier": None,
    }[collective]
    return 0.0 if factor is not None and n == 1 else factor

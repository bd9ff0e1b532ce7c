"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them.

A rate is derived once, from one time; rates are never averaged (the mean of rates is not the rate
of the mean time).
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.operations.collectives import collective_spec


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Rates in bytes/s; ``busbw`` is the rate that hardware peaks compare with."""

    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


def busbw_factor(collective: str, world_size: int) -> float | None:
    """Return busbw / algbw for ``world_size`` ranks.

    None for a barrier, which moves no data, and for a collective that is not installed. Parts of
    different sizes have the factor of equal ones, as nccl-tests' alltoallv does.
    """
    return collective_spec(collective).busbw_factor(world_size)

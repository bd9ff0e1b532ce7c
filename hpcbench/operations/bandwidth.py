"""Algorithm and bus bandwidth of a collective, as nccl-tests defines them.

A rate is derived once, from one time; rates are never averaged (the mean of rates is not the rate
of the mean time).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from hpcbench.operations.collectives import collective_spec, collectives


@dataclass(frozen=True, slots=True)
class Bandwidth:
    """Rates in bytes/s; ``busbw`` is the rate that hardware peaks compare with."""

    algbw_bytes_per_s: float
    busbw_bytes_per_s: float


class Sized(Protocol):
    """A collective with its size, run by one or several equal groups at once."""

    @property
    def collective(self) -> str:
        """Return the name of the collective."""

    @property
    def size_bytes(self) -> int:
        """Return the size as nccl-tests counts it, of one group."""

    @property
    def groups(self) -> int:
        """Return the number of groups."""


def busbw_factor(collective: str, world_size: int) -> float | None:
    """Return busbw / algbw for ``world_size`` ranks; None for barrier, which moves no data.

    Parts of different sizes have the factor of equal ones, as nccl-tests' alltoallv does.
    Raises KeyError for an unknown collective.
    """
    return collectives()[collective].busbw_factor(world_size)


def bandwidth(workload: Sized, world_size: int, time_s: float) -> Bandwidth | None:
    """Return S / t and S / t x factor; None where there is no such factor or time.

    That is so for barrier, for a collective that is not installed, and for a time that is not
    positive. Of several groups at once the rates are those of one group, in the time of the
    slowest.
    """
    factor = collective_spec(workload.collective).busbw_factor(world_size // workload.groups)
    if factor is None or not time_s > 0:
        return None
    algbw = workload.size_bytes / time_s
    return Bandwidth(algbw, algbw * factor)

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


@dataclass(frozen=True, slots=True)
class WireRate:
    """Bytes/s that a rank's links carry in one direction, which line rates compare with.

    ``name`` is what the number is called: ``bus bandwidth``, or another one.
    """

    bytes_per_s: float
    name: str = "bus bandwidth"


def wire_rate(
    collective: str, rates: Bandwidth | None, ranks: int, algorithm: str | None,
) -> WireRate | None:
    """Return what links carry: ``busbw``, unless a switch adds up what ranks send.

    ``algorithm`` is what the library told. In an all_reduce by NVLS (NVLink SHARP) each of n ranks
    sends its own data once and a part of the sum to all: S (n + 1) / n, less than 2 S (n - 1) / n
    from 4 ranks on (nccl-tests, pull request 239).
    """
    if rates is None:
        return None
    if collective == "all_reduce" and algorithm == "NVLS" and ranks > 1:
        return WireRate(rates.algbw_bytes_per_s * (ranks + 1) / ranks,
                        "wire rate of NVLS, algbw x (n + 1) / n,")
    return WireRate(rates.busbw_bytes_per_s)

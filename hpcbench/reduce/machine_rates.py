"""What a case tells of single ranks and of single links of the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class PairRates:
    """A rate from every rank (row) to every other one (column); more is better.

    None was not measured. ``each_way`` is whether the two values of a link were measured apart.
    ``missing`` says why links cannot be compared with one another, if they cannot.
    """

    rates: tuple[tuple[float | None, ...], ...] = ()
    each_way: bool = True
    missing: str = ""

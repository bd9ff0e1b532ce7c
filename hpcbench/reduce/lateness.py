"""Which rank others wait for, as stamps tell it: of every case its start, more where a kind knows.
"""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.reduce.comparison import Comparison

BEFORE_THE_CALL = "before the call"
"""Where a rank is late that starts late."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """One look at the ranks of a case.

    Attributes:
        comparison: of the moments from which on a rank does not hold the others up; None where
            nothing tells them.
        phase: where most of the lateness of `comparison`'s rank arises; empty if not known.
        phase_s: how much longer that rank is there than the others.
        missing: why nothing tells; empty where the comparison does.
    """

    comparison: Comparison | None = None
    phase: str = ""
    phase_s: float = 0.0
    missing: str = ""

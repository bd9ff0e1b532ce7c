"""What a rank records of how quiet its core is: `measure.noise` measures it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

NOISE_NOTE = "noise"
"""The note in which a rank records `measure.noise.measure_noise` before the sweep."""


@dataclass(frozen=True, slots=True)
class Noise:
    """What a rank lost to others while it did nothing but read the clock.

    ``stolen_share`` is the time inside detours (gaps longer than ``threshold_ns``) over all
    ``seconds``; ``median_step_ns`` is what one turn of the loop takes undisturbed.
    """

    seconds: float
    n_detours: int
    stolen_share: float
    longest_ns: int
    median_step_ns: float
    threshold_ns: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Noise:
        """Rebuild what `to_json` gave. Raises TypeError for anything else."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class FixedWork:
    """How unequal the times of equal pieces of work are: ratios to the median, and sd over mean."""

    n_loops: int
    median_ns: float
    cv: float
    p99_over_median: float
    max_over_median: float

    def to_json(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return asdict(self)

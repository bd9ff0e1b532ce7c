"""What a rank records of how quiet its core is: `measure.noise` measures it."""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True, slots=True)
class FixedWork:
    """How unequal the times of equal pieces of work are: ratios to the median, and sd over mean."""

    n_loops: int
    median_ns: float
    cv: float
    p99_over_median: float
    max_over_median: float

"""Ratios of what takes turns in one run, formed turn by turn: drift of the machine cancels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.overlap import MeanInterval, mean_interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of the ratios of all turns, and its 95 % interval."""

    mean: float
    interval: MeanInterval

    @property
    def text(self) -> str:
        """Return ``1.002 (0.998..1.006)``."""
        return f"{self.mean:.3f} ({self.interval.low:.3f}..{self.interval.high:.3f})"

    @property
    def farther(self) -> float:
        """Return how far the farther end is from 1."""
        return max(self.interval.high - 1, 1 - self.interval.low)


def ratio(times_s: npt.NDArray[np.float64], base_s: npt.NDArray[np.float64]) -> Ratio:
    """Return the ratio of the times of two things, (turn,)."""
    logs = np.log(times_s / base_s)
    interval = mean_interval(logs)
    return Ratio(float(np.exp(logs.mean())),
                 MeanInterval(*(float(np.exp(end)) for end in (interval.low, interval.high))))

"""Ratios of what takes turns in one run, formed turn by turn: drift of the machine cancels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.statistics.order import Interval
from hpcbench.statistics.overlap import mean_interval


@dataclass(frozen=True, slots=True)
class Ratio:
    """Geometric mean of the ratios of all turns, and its 95 % interval."""

    mean: float
    interval: Interval

    @property
    def text(self) -> str:
        """Return ``1.002 (0.998..1.006)``."""
        low, high = self.interval.ends
        return f"{self.mean:.3f} ({low:.3f}..{high:.3f})"

    @property
    def farther(self) -> float:
        """Return how far the farther end is from 1."""
        low, high = self.interval.ends
        return max(high - 1, 1 - low)


def ratio(times_s: npt.NDArray[np.float64], base_s: npt.NDArray[np.float64]) -> Ratio:
    """Return the ratio of the times of two things, (turn,)."""
    logs = np.log(times_s / base_s)
    interval = mean_interval(logs).map(lambda log: float(np.exp(log)))
    return Ratio(interval.value, interval)

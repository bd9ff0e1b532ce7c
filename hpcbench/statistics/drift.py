"""Whether a short series of runs rises or falls steadily, with an error rate that is known.

Kendall's tau is the share of pairs of runs in which the later one is longer, less the share in
which it is shorter. A test for independent values would alarm far too often: runs near each other
share disturbances, and all runs of one process share its conditions. So the limits of tau are such
that no stationary series tried exceeds them in more than 1 of 100 cases: Gaussian values of
neighbour correlation 0 to 0.9, two modes that hold for 3 or 10 runs, and groups of runs with a
level each (benchmarks/error_rates.py). The price is power: steps and humps are not seen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from hpcbench.statistics.order import Values, median, medians

FEWEST_RUNS = 8
"""Seven runs of a stationary series rise by chance in more than 1 of 100 cases."""
LIMITS = ((32, 0.81), (20, 0.85), (12, 0.92), (FEWEST_RUNS, 0.95))
"""From so many runs on, the |tau| that a drift needs; the most runs first."""
LEAST_CHANGE = 0.03
"""Of the median, over the whole series: a smaller drift is not worth a finding."""
MAX_POINTS = 64
"""A longer series is judged by the medians of equal blocks."""


@dataclass(frozen=True, slots=True)
class Drift:
    """``change`` is that of the line of Theil and Sen over the series, relative to the median."""

    change: float
    tau: float
    significant: bool


def steady_drift(values: Values, at: Values) -> Drift | None:
    """Return the drift of ``values`` (run,) above 0, taken at times ``at`` (run,) that ascend.

    The result is None for fewer than FEWEST_RUNS runs.
    """
    length = -(-values.size // MAX_POINTS)
    count = values.size // length if length else 0
    if count < FEWEST_RUNS:
        return None
    points, times = (medians(series[:count * length].reshape(count, length))
                     for series in (values, at))
    earlier, later = np.triu_indices(count, 1)
    differences, gaps = points[later] - points[earlier], times[later] - times[earlier]
    tau = float(np.sign(differences).mean())
    slope = median(differences[gaps > 0] / gaps[gaps > 0]) if np.any(gaps > 0) else 0.0
    change = slope * float(at[-1] - at[0]) / median(values)
    limit = next(limit for fewest, limit in LIMITS if count >= fewest)
    return Drift(change, tau, abs(tau) >= limit and abs(change) > LEAST_CHANGE)

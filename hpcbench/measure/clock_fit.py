"""Lines through the offsets of two clocks that ping-pongs measure.

The limits are SKaMPI's (smallest and largest difference over some ping-pongs), the line is Theil
and Sen's: one probe that was held up, or a third of them, must not bend it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from hpcbench.trace.clock import MAX_DRIFT, ClockCheck, ClockModel, Floats

_SLOPE_ERRORS = 15
"""Standard errors that the slope is trusted to. Noise on overloaded cores is neither normal nor
independent: of 350 fits there the worst was 13 off, with idle cores 3."""


@dataclass(frozen=True, slots=True)
class OffsetInterval:
    """Where local minus parent's time lay around ``local_ns``: for certain between low and high."""

    local_ns: int
    low_ns: int
    high_ns: int


def offset_interval(trips: Sequence[tuple[int, int, int]]) -> OffsetInterval:
    """Return the offset that some ping-pongs in a row allow, at the middle of their time.

    A trip is (local time sent, other clock's answer, local time received), all in ns. The answer
    was stamped between the two, so each trip gives limits; drift in the meantime widens them.
    """
    begin_ns, end_ns = trips[0][0], trips[-1][2]
    drift_ns = 1 + int(MAX_DRIFT * (end_ns - begin_ns) / 2)
    return OffsetInterval(
        begin_ns + (end_ns - begin_ns) // 2,
        max(sent - answer for sent, answer, _ in trips) - drift_ns,
        min(received - answer for _, answer, received in trips) + drift_ns)


def fit(
    points: Sequence[OffsetInterval], *, parent: int = 0, parent_bound_ns: float = 0.0,
    parent_slope_bound: float = 0.0,
) -> ClockModel:
    """Return the line through at least two points in order of time, robust against bad ones.

    Points wider than the median one were delayed (queues, preemption): they are rejected. Slope:
    median over pairs of points at least a quarter of the span apart (Theil-Sen). Offset: median.
    The parent's limits are added to this line's own. Raises ValueError for fewer points.
    """
    possible = [point for point in points if point.low_ns <= point.high_ns]
    if len(possible) < 2:
        raise ValueError(f"{len(possible)} of {len(points)} points can be used: too few for a line")
    widest = float(np.median([point.high_ns - point.low_ns for point in possible]))
    kept = [point for point in possible if point.high_ns - point.low_ns <= widest]
    kept = kept if len(kept) > 1 else possible
    t_ref_ns, base_ns = kept[-1].local_ns, kept[-1].low_ns
    at = np.array([point.local_ns - t_ref_ns for point in kept], dtype=np.float64)
    low = np.array([point.low_ns - base_ns for point in kept], dtype=np.float64)
    high = np.array([point.high_ns - base_ns for point in kept], dtype=np.float64)
    middle = (low + high) / 2
    slope = _theil_sen(at, middle)
    offset = round(float(np.median(middle - slope * at)))
    line = offset + slope * at
    residual_ns = float(np.median(np.abs(middle - line)))
    bound_ns, slope_bound = _limits(at, low - line, high - line, _slope_error(at, residual_ns))
    return ClockModel(
        t_ref_ns, slope, base_ns + offset, bound_ns + parent_bound_ns,
        slope_bound + parent_slope_bound, residual_ns, parent, len(kept), len(points) - len(kept))


def _theil_sen(at: Floats, values: Floats) -> float:
    """Return the median slope over pairs of points at least a quarter of the span apart."""
    first, second = np.triu_indices(at.size, 1)
    apart = at[second] - at[first]
    far = apart >= max(float(at[-1] - at[0]) / 4, 1.0)
    rises = values[second][far] - values[first][far]
    return float(np.median(rises / apart[far]))


def _slope_error(at: Floats, residual_ns: float) -> float:
    """Return how far off the slope may be, from the points' median distance of the line.

    Standard error of a line through n points spread evenly over a span: sd * sqrt(12 / n) / span.
    """
    sd = 1.4826 * max(residual_ns, 1.0)
    return _SLOPE_ERRORS * sd * math.sqrt(12 / at.size) / float(at[-1] - at[0])


def _limits(at: Floats, low: Floats, high: Floats, slope_error: float) -> tuple[float, float]:
    """Return how far the truth can be from zero at time 0, and the limit of its slope.

    ``low`` and ``high`` are the intervals less the fitted line. The truth is a line through all of
    them if the clock's rate did not change during the fit. If there is no such line, it did
    change: then the furthest end of an interval is the limit.
    """
    first, second = np.triu_indices(at.size, 1)
    apart = at[second] - at[first]
    steepest = float(np.min((high[second] - low[first]) / apart))
    shallowest = float(np.max((low[second] - high[first]) / apart))
    before = np.abs(at)
    upper = float(np.min(high + before * steepest))
    lower = float(np.max(low + before * shallowest))
    if shallowest > steepest or lower > upper:
        furthest = float(np.max(np.maximum(np.abs(low), np.abs(high))))
        return furthest, 2 * furthest / float(at[-1] - at[0])
    return max(abs(upper), abs(lower)), min(slope_error, max(abs(steepest), abs(shallowest)))


def check_model(model: ClockModel, measured: OffsetInterval) -> tuple[ClockModel, ClockCheck]:
    """Return the model, better bounded, and how it was checked by ``measured`` against rank 0.

    A measured offset limits the error directly; the model's bound is a sum over its parents.
    """
    offset_ns = model.offset_at(measured.local_ns)
    error_ns = abs((measured.low_ns - offset_ns) + (measured.high_ns - offset_ns)) / 2
    check = ClockCheck(measured.local_ns, error_ns, (measured.high_ns - measured.low_ns) / 2)
    if check.refutes(model):
        return model, check
    since_ns = abs(measured.local_ns - model.t_ref_ns)
    direct_ns = error_ns + check.bound_ns + model.slope_bound * since_ns
    return replace(model, bound_ns=min(model.bound_ns, direct_ns)), check

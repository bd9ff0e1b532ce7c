"""Models of a rank's clock against the job's global clock: correction afterwards, its bounds.

The global clock is rank 0's CLOCK_MONOTONIC. Clocks of machines differ by up to 1e15 ns and more,
where float64 has lost the nanoseconds. So stamps and offsets are integers (int64) throughout, and
floats hold only what is small: differences of two offsets, rates, and rates times durations.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

MAX_DRIFT = 200e-6
"""No real clock runs further off than this (free drift is 5-30 us/s: Huygens, NSDI 2018)."""
Nanoseconds = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClockModel:
    """A line from this rank's clock to the global one, fitted by one synchronisation.

    global time = t - slope * (t - t_ref_ns) - offset_ns, for t on the local CLOCK_MONOTONIC.

    Attributes:
        t_ref_ns: local time of the last point of the fit, at which the offset is ``offset_ns``.
        slope: local time gained per local time (1e-6 is 1 ppm fast).
        offset_ns: local minus global time at ``t_ref_ns``, rounded to 1 ns.
        bound_ns: limit of the error at ``t_ref_ns`` against rank 0's clock, whatever delayed the
            messages; the parents' limits are in it.
        slope_bound: limit of the error of ``slope``, likewise, but by the spread of the points:
            15 standard errors, unless what is possible at all is less.
        residual_ns: median distance of the points used from the line.
        parent: rank that the clock was compared with; -1 for a clock that is the global one.
        n_used, n_rejected: points of the fit, and points with a wider bound than the median.
    """

    t_ref_ns: int
    slope: float
    offset_ns: int
    bound_ns: float
    slope_bound: float
    residual_ns: float
    parent: int
    n_used: int
    n_rejected: int

    def offset_at(self, local_ns: int) -> int:
        """Return local minus global time, in ns."""
        return self.offset_ns + round(self.slope * (local_ns - self.t_ref_ns))

    def to_global(self, local_ns: int) -> int:
        return local_ns - self.offset_at(local_ns)

    def to_local(self, global_ns: int) -> int:
        """Return the local time at a global time: the inverse of `to_global`, within 1 ns."""
        since_ref = global_ns + self.offset_ns - self.t_ref_ns
        return self.t_ref_ns + since_ref + round(since_ref * self.slope / (1 - self.slope))

    def all_to_global(self, local_ns: Nanoseconds) -> Nanoseconds:
        drifted = np.rint(self.slope * (local_ns - self.t_ref_ns)).astype(np.int64)
        return np.asarray(local_ns - self.offset_ns - drifted, dtype=np.int64)

    def bound_at(self, local_ns: int) -> float:
        """Return the limit of the error when the line is drawn out to ``local_ns``, in ns."""
        return self.bound_ns + self.slope_bound * abs(local_ns - self.t_ref_ns)

    @staticmethod
    def identity(t_ref_ns: int) -> ClockModel:
        return ClockModel(t_ref_ns, 0.0, 0, 0.0, 0.0, 0.0, parent=-1, n_used=0, n_rejected=0)


def to_global(
    models: Sequence[ClockModel], local_ns: Nanoseconds, out: Nanoseconds | None = None,
) -> Nanoseconds:
    """Return global times (ns, int64, any shape) at local ones, in ``out`` if it is given.

    ``models`` are one rank's, in order of time. Between two of them the offset is interpolated
    linearly; before the first and after the last that model's own line is used.
    Raises ValueError if there are none or they are out of order.
    """
    line = _line(tuple(models))
    local = np.asarray(local_ns, dtype=np.int64)
    segment = _segment(line.t_ref, local)
    start = np.maximum(segment - 1, 0)
    shift = np.asarray(local - line.t_ref[start])
    # arrays are used again: most of the time goes to memory that was not used before
    if np.any(line.rates[segment]):
        drift = np.asarray(line.rates[segment] * shift)
        np.copyto(shift, np.rint(drift, out=drift), casting="unsafe")
        shift += line.offset[start]
    else:  # rank 0's clock is the global one
        shift[...] = line.offset[start]
    return np.subtract(local, shift, out=shift if out is None else out)


def bound_at(models: Sequence[ClockModel], local_ns: Nanoseconds) -> Floats:
    """Return the limits of `to_global`'s errors (ns, float64, the shape of ``local_ns``).

    Between two synchronisations: their bounds, interpolated, and the distance to the nearer one
    times the difference between the mean rate and the rates measured at either; that covers every
    clock whose rate meanwhile stays within those three. Outside: `ClockModel.bound_at`.
    """
    line = _line(tuple(models))
    local = np.asarray(local_ns, dtype=np.int64)
    segment = _segment(line.t_ref, local)
    earlier, later = np.maximum(segment - 1, 0), np.minimum(segment, len(models) - 1)
    since, until = np.abs(local - line.t_ref[earlier]), np.abs(line.t_ref[later] - local)
    weight = since / np.maximum(since + until, 1)
    synced = line.bounds[earlier] * (1 - weight) + line.bounds[later] * weight
    return np.asarray(synced + line.uncertain[segment] * np.minimum(since, until),
                      dtype=np.float64)


@dataclass(frozen=True, slots=True)
class _Line:
    """Models as arrays: a value for each of ``t_ref``, ``offset`` and ``bounds``.

    ``rates`` and ``uncertain`` have one for each segment: before, between and behind them.
    """

    t_ref: Nanoseconds
    offset: Nanoseconds
    bounds: Floats
    rates: Floats
    uncertain: Floats


@lru_cache(maxsize=1024)
def _line(models: tuple[ClockModel, ...]) -> _Line:
    """Return the models as arrays; those of a run are asked for again with every case."""
    t_ref, offset = _references(models)
    bounds = np.array([model.bound_ns for model in models])
    slopes = np.array([model.slope for model in models])
    mean = np.diff(offset) / np.diff(t_ref)
    change = np.maximum(np.abs(slopes[:-1] - mean), np.abs(slopes[1:] - mean))
    return _Line(
        t_ref, offset, bounds, np.concatenate(([slopes[0]], mean, [slopes[-1]])),
        np.concatenate(([models[0].slope_bound], change, [models[-1].slope_bound])))


def _segment(t_ref: Nanoseconds, local: Nanoseconds) -> npt.NDArray[np.intp]:
    """Return between which synchronisations the times lie; one number where it is one for all.

    That is so of most cases, and saves a look-up for each time.
    """
    if not local.size:
        return np.zeros(local.shape, dtype=np.intp)
    ends = np.searchsorted(t_ref, [local.min(), local.max()], side="right")
    if ends[0] == ends[1]:
        return np.asarray(ends[0])
    return np.asarray(np.searchsorted(t_ref, local, side="right"))


def _references(models: Sequence[ClockModel]) -> tuple[Nanoseconds, Nanoseconds]:
    t_ref = np.array([model.t_ref_ns for model in models], dtype=np.int64)
    if t_ref.size == 0 or np.any(np.diff(t_ref) <= 0):
        raise ValueError("clock models must be at least one, in order of time")
    return t_ref, np.array([model.offset_ns for model in models], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """A fresh comparison with rank 0's clock, right after a synchronisation.

    Attributes:
        local_ns: when, on the local clock.
        error_ns: distance of the model from the middle of what was measured.
        bound_ns: how far the truth can be from that middle.
    """

    local_ns: int
    error_ns: float
    bound_ns: float

    def refutes(self, model: ClockModel) -> bool:
        """Return whether the model is wrong: further off than both bounds allow."""
        return self.error_ns > self.bound_ns + model.bound_at(self.local_ns)


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """What one synchronisation left on one rank; its JSON is the journal's note ``clock``.

    Attributes:
        identity: this rank's `measure.environment.clock_identity`.
        n_clocks: different clocks among the ranks that took part; no check was needed with one.
        model, check: of the lowest rank with this identity; rank 0's clock has no check.
        local_ns, realtime_ns: CLOCK_MONOTONIC and CLOCK_REALTIME at the same moment.
    """

    identity: str
    n_clocks: int
    model: ClockModel
    check: ClockCheck | None
    local_ns: int
    realtime_ns: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

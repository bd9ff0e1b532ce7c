"""Models of a rank's clock against the global one, rank 0's CLOCK_MONOTONIC, and their bounds.
Clocks of machines differ by 1e15 ns and more, where float64 has no nanoseconds: stamps and offsets
are int64, floats hold only differences and rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.records import dataclass

MAX_DRIFT = 200e-6
"""No real clock runs further off than this (free drift is 5-30 us/s: Huygens, NSDI 2018)."""
Nanoseconds = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ClockModel:
    """A line from this rank's clock to the global one, fitted by one synchronisation: global time =
    t - slope * (t - t_ref_ns) - offset_ns, t on the local CLOCK_MONOTONIC. ``t_ref_ns`` is the last
    point of the fit; ``slope`` 1e-6 is 1 ppm fast. ``bound_ns`` limits the error there, parents'
    included, whatever delayed messages; ``slope_bound`` that of the slope: 15 standard errors, or
    the most possible. ``residual_ns`` is the median distance of points from the line; ``parent`` -1
    is the global clock; ``n_rejected`` points had a wider bound than the median."""

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
        return self.offset_ns + round(self.slope * (local_ns - self.t_ref_ns))

    def to_global(self, local_ns: int) -> int:
        return local_ns - self.offset_at(local_ns)

    def to_local(self, global_ns: int) -> int:
        since_ref = global_ns + self.offset_ns - self.t_ref_ns
        return self.t_ref_ns + since_ref + round(since_ref * self.slope / (1 - self.slope))

    def all_to_global(self, local_ns: Nanoseconds) -> Nanoseconds:
        drifted = np.rint(self.slope * (local_ns - self.t_ref_ns)).astype(np.int64)
        return np.asarray(local_ns - self.offset_ns - drifted, dtype=np.int64)

    def bound_at(self, local_ns: int) -> float:
        """Return the limit of the error of the line at ``local_ns``, in ns."""
        return self.bound_ns + self.slope_bound * abs(local_ns - self.t_ref_ns)

    @staticmethod
    def identity(t_ref_ns: int) -> ClockModel:
        return ClockModel(t_ref_ns, 0.0, 0, 0.0, 0.0, 0.0, parent=-1, n_used=0, n_rejected=0)


def to_global(
    models: Sequence[ClockModel], local_ns: Nanoseconds, out: Nanoseconds | None = None,
) -> Nanoseconds:
    """Return global times (ns, int64, any shape) in ``out`` or a new array. Between two ``models``
    of a rank the offset is interpolated; outside the nearest model's line holds. Raises ValueError
    for none, or models out of order."""
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
    """Return the limits of `to_global`'s errors (ns, the shape of ``local_ns``). Between two
    synchronisations: bounds interpolated, plus the distance to the nearer one times the largest
    difference of rates, which covers clocks that stay within these. Outside: `ClockModel.bound_at`.
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
    """Models as arrays; ``rates`` and ``uncertain`` of segments: before, between and behind
    them."""

    t_ref: Nanoseconds
    offset: Nanoseconds
    bounds: Floats
    rates: Floats
    uncertain: Floats


@lru_cache(maxsize=1024)
def _line(models: tuple[ClockModel, ...]) -> _Line:
    t_ref = np.array([model.t_ref_ns for model in models], dtype=np.int64)
    if t_ref.size == 0 or np.any(np.diff(t_ref) <= 0):
        raise ValueError("clock models must be at least one, in order of time")
    offset = np.array([model.offset_ns for model in models], dtype=np.int64)
    bounds = np.array([model.bound_ns for model in models])
    slopes = np.array([model.slope for model in models])
    mean = np.diff(offset) / np.diff(t_ref)
    change = np.maximum(np.abs(slopes[:-1] - mean), np.abs(slopes[1:] - mean))
    return _Line(
        t_ref, offset, bounds, np.concatenate(([slopes[0]], mean, [slopes[-1]])),
        np.concatenate(([models[0].slope_bound], change, [models[-1].slope_bound])))


def _segment(t_ref: Nanoseconds, local: Nanoseconds) -> npt.NDArray[np.intp]:
    """Return between which synchronisations the times lie; one number where it is the same for
    all."""
    if not local.size:
        return np.zeros(local.shape, dtype=np.intp)
    ends = np.searchsorted(t_ref, [local.min(), local.max()], side="right")
    if ends[0] == ends[1]:
        return np.asarray(ends[0])
    return np.asarray(np.searchsorted(t_ref, local, side="right"))


@dataclass(frozen=True, slots=True)
class ClockCheck:
    """A fresh comparison with rank 0's clock after a synchronisation. ``error_ns``: distance of the
    model from the middle of the measured range, which is known to ``bound_ns``."""

    local_ns: int
    error_ns: float
    bound_ns: float

    def refutes(self, model: ClockModel) -> bool:
        return self.error_ns > self.bound_ns + model.bound_at(self.local_ns)


@dataclass(frozen=True, slots=True)
class SyncRecord:
    """One synchronisation on one rank, the journal's note ``clock``. ``identity`` is that of
    `measure.environment.clock_identity`; ``model`` and ``check`` are of the lowest rank with it.
    ``local_ns`` and ``realtime_ns`` are CLOCK_MONOTONIC and CLOCK_REALTIME at one moment."""

    identity: str
    n_clocks: int
    model: ClockModel
    check: ClockCheck | None
    local_ns: int
    realtime_ns: int

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

"""Clocks of supervisors compared over MPI, and the lines through their offsets.

HCA3 (Hunold and Carpen-Amarie, CLUSTER 2018): a tree of pairs of ranks, one for each clock. A
parent knows the global time before its children ask, so nothing is merged. Its answers are raw
stamps, to which the child applies the parent's model: arithmetic between stamp and sending would
lengthen the way back. The limits are SKaMPI's (smallest and largest difference over some
ping-pongs), the line is Theil and Sen's, robust against a third of delayed probes."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from hpcbench.launch.communicator import Communicator, Pair
from hpcbench.measurement.environment import clock_identity
from hpcbench.records import dataclass
from hpcbench.trace.clock import MAX_DRIFT, ClockCheck, ClockModel, Floats, SyncRecord
from hpcbench.trace.schema import from_values

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

    A trip is (sent, the other clock's answer, received) in ns; each gives limits, which drift
    widens."""
    begin_ns, end_ns = trips[0][0], trips[-1][2]
    drift_ns = 1 + int(MAX_DRIFT * (end_ns - begin_ns) / 2)
    return OffsetInterval(
        begin_ns + (end_ns - begin_ns) // 2,
        max(sent - answer for sent, answer, _ in trips) - drift_ns,
        min(received - answer for _, answer, received in trips) + drift_ns)


def fit_clock(
    points: Sequence[OffsetInterval], *, parent: int = 0, parent_bound_ns: float = 0.0,
    parent_slope_bound: float = 0.0,
) -> ClockModel:
    """Return the line through at least two points in order of time, robust against bad ones.

    Points wider than the median were delayed: rejected. Slope: median over pairs at least a quarter
    of the span apart (Theil-Sen). Offset: median. The parent's limits are added. Raises ValueError.
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
    first, second = np.triu_indices(at.size, 1)
    distance = at[second] - at[first]
    far = distance >= max(float(at[-1] - at[0]) / 4, 1.0)
    rises = values[second][far] - values[first][far]
    return float(np.median(rises / distance[far]))


def _slope_error(at: Floats, residual_ns: float) -> float:
    """Return the slope's error from the points' median distance of the line.

    Standard error of a line through n points spread evenly over a span: sd * sqrt(12 / n) / span.
    """
    sd = 1.4826 * max(residual_ns, 1.0)
    return _SLOPE_ERRORS * sd * math.sqrt(12 / at.size) / float(at[-1] - at[0])


def _limits(at: Floats, low: Floats, high: Floats, slope_error: float) -> tuple[float, float]:
    """Return how far the truth can be from zero at time 0, and the limit of its slope.

    ``low`` and ``high`` are the intervals less the fitted line. The truth is a line through all of
    them; if there is none the rate changed, and the furthest end of an interval is the limit."""
    first, second = np.triu_indices(at.size, 1)
    distance = at[second] - at[first]
    steepest = float(np.min((high[second] - low[first]) / distance))
    shallowest = float(np.max((low[second] - high[first]) / distance))
    before = np.abs(at)
    upper = float(np.min(high + before * steepest))
    lower = float(np.max(low + before * shallowest))
    if shallowest > steepest or lower > upper:
        furthest = float(np.max(np.maximum(np.abs(low), np.abs(high))))
        return furthest, 2 * furthest / float(at[-1] - at[0])
    return max(abs(upper), abs(lower)), min(slope_error, max(abs(steepest), abs(shallowest)))


def check_model(model: ClockModel, measured: OffsetInterval) -> tuple[ClockModel, ClockCheck]:
    """Return the model, better bounded by a measured offset against rank 0, and the check."""
    offset_ns = model.offset_at(measured.local_ns)
    error_ns = abs((measured.low_ns - offset_ns) + (measured.high_ns - offset_ns)) / 2
    check = ClockCheck(measured.local_ns, error_ns, (measured.high_ns - measured.low_ns) / 2)
    if check.refutes(model):
        return model, check
    since_ns = abs(measured.local_ns - model.t_ref_ns)
    direct_ns = error_ns + check.bound_ns + model.slope_bound * since_ns
    return replace(model, bound_ns=min(model.bound_ns, direct_ns)), check


Now = Callable[[], int]
Trip = tuple[int, int, int]
_GO_ON, _END = 0, 1


@dataclass(frozen=True, slots=True)
class ClockEffort:
    """How thoroughly two clocks are compared.

    A fit has ``points`` points of ``pings`` ping-pongs and spans at least points * gap_s: the
    rate's error falls with the span. After ``limit_s`` ``min_points`` suffice. ``timeout_s``: the
    longest silence of a rank in its turn."""

    points: int = 100
    min_points: int = 20
    pings: int = 20
    gap_s: float = 0.0055
    limit_s: float = 2.0
    check_pings: int = 10
    timeout_s: float = 30.0


class SynchronisedClock:
    """This rank's clock against rank 0's: all comparisons so far, and when the next is due.

    Clocks are compared before the first case, every ``every_s`` and at the end, so that stamps are
    corrected from both sides (`hpcbench.trace.clock.to_global`)."""

    def __init__(
        self, now_ns: Now, every_s: float, note: Callable[[str, Mapping[str, Any]], None], *,
        identity: str | None = None, pace: ClockEffort | None = None,
    ) -> None:
        """``note`` puts a record on disk, under ``clock``; tests give ``identity`` and ``pace``."""
        self._now_ns = now_ns
        self._every_s = every_s
        self._note = note
        self._identity = clock_identity() if identity is None else identity
        self._pace = pace or ClockEffort()
        self.records: list[SyncRecord] = []
        self._compared: list[tuple[int, int]] = []

    @property
    def model(self) -> ClockModel:
        """Return the newest model, for times that cannot wait for the next synchronisation."""
        return self.records[-1].model

    def sync(self, comm: Communicator) -> ClockModel:
        """Compare the clocks of all ranks of ``comm``, rank 0 being the job's; collective."""
        record = synchronise(comm, self._now_ns, self._identity, self._pace)
        self.keep(record, comm.size)
        return record.model

    def keep(self, record: SyncRecord, ranks: int) -> None:
        """Record a comparison of the first ``ranks`` ranks."""
        self.records.append(record)
        self._compared.append((ranks, record.local_ns))
        self._note("clock", record.to_json())

    def due(self, size: int) -> bool:
        """Return whether it is time to compare the clocks of the first ``size`` ranks.

        One rank decides for all. Never while all share one clock."""
        if all(record.n_clocks == 1 for record in self.records):
            return not self.records
        last_ns = max((at_ns for ranks, at_ns in self._compared if ranks >= size), default=None)
        return last_ns is None or self._now_ns() - last_ns >= self._every_s * 1e9


def synchronise(
    comm: Communicator, now_ns: Now, identity: str, pace: ClockEffort | None = None,
) -> SyncRecord:
    """Compare the clocks of all ranks and check the result; collective.

    Ranks with the same ``identity`` share a clock: the lowest compares it, the others take over its
    model. Raises RankLostError if a rank is silent for too long."""
    pace = pace or ClockEffort()
    identities = comm.allgather(identity, pace.timeout_s)
    leaders = [identities.index(known) for known in dict.fromkeys(identities)]
    leader = identities.index(identity)
    record = SyncRecord(identity, len(leaders), ClockModel.identity(now_ns()), None,
                        *_two_clocks(now_ns))
    if len(leaders) == 1:
        return record
    silence_limit_s = pace.timeout_s * (len(leaders).bit_length() + 2)
    if comm.rank == leader:
        record = _Leader(comm, now_ns, pace, leaders, silence_limit_s).compared(record)
    records = comm.allgather(record.to_json() if comm.rank == leader else None, silence_limit_s)
    theirs = from_values(SyncRecord, records[leader])
    local_ns, realtime_ns = _two_clocks(now_ns)
    return replace(theirs, local_ns=local_ns, realtime_ns=realtime_ns)


def _two_clocks(now_ns: Now) -> tuple[int, int]:
    before_ns, realtime_ns, after_ns = now_ns(), time.time_ns(), now_ns()
    return (before_ns + after_ns) // 2, realtime_ns


def parent_and_children(place: int, count: int) -> tuple[int | None, list[int]]:
    """Return a place's parent and children, in order of their turns, in a tree of ``count``.

    All are reached in ceil(log2(count)) rounds."""
    reach = place & -place or 1 << (count - 1).bit_length()
    strides = [1 << bit for bit in reversed(range(reach.bit_length() - 1))]
    children = [place + stride for stride in strides if place + stride < count]
    return (place - reach if place else None), children


@dataclass(frozen=True, slots=True)
class _Leader:
    """The lowest rank of those that share a clock."""

    comm: Communicator
    now_ns: Now
    pace: ClockEffort
    leaders: list[int]
    silence_limit_s: float

    def compared(self, record: SyncRecord) -> SyncRecord:
        """Return the record with the model learnt from the parent, checked against rank 0."""
        parent, children = parent_and_children(
            self.leaders.index(self.comm.rank), len(self.leaders))
        model = record.model if parent is None else self._learn(self.leaders[parent])
        for child in children:
            self._teach(self.leaders[child], model)
        if parent is not None:
            model, check = self._checked(model)
            return replace(record, model=model, check=check)
        for other in self.leaders[1:]:
            with self.comm.pair(other, self.pace.timeout_s) as pair:
                pair.send(_GO_ON)
                pair.wait(self.silence_limit_s)  # that rank may still have children
                _answer(pair, self.now_ns, self.pace.check_pings)
        return record

    def _learn(self, parent: int) -> ClockModel:
        """Return this rank's model, from a parent who begins when its turn has come."""
        points: list[OffsetInterval] = []
        with self.comm.pair(parent, self.pace.timeout_s) as pair:
            theirs = _received_model(pair, self.silence_limit_s)
            until = time.monotonic() + self.pace.limit_s
            while len(points) < self.pace.min_points or (
                    len(points) < self.pace.points and time.monotonic() < until):
                trips = _ping(pair, self.now_ns, self.pace.pings)
                points.append(offset_interval([
                    (sent, theirs.to_global(stamp), received) for sent, stamp, received in trips]))
                time.sleep(self.pace.gap_s)
            pair.send(_END)
        return fit_clock(points, parent=parent, parent_bound_ns=theirs.bound_at(trips[-1][1]),
                   parent_slope_bound=theirs.slope_bound)

    def _teach(self, child: int, model: ClockModel) -> None:
        with self.comm.pair(child, self.pace.timeout_s) as pair:
            _send_model(pair, model, self.pace.timeout_s)
            while pair.wait(self.pace.timeout_s) != _END:
                _answer(pair, self.now_ns, self.pace.pings)

    def _checked(self, model: ClockModel) -> tuple[ClockModel, ClockCheck]:
        """Return the model and its distance from rank 0's clock, when that rank has time."""
        with self.comm.pair(self.leaders[0], self.pace.timeout_s) as pair:
            pair.wait(self.silence_limit_s)
            return check_model(model, offset_interval(
                _ping(pair, self.now_ns, self.pace.check_pings)))


def _ping(pair: Pair, now_ns: Now, pings: int) -> list[Trip]:
    """Return (sent, answer, received) of some ping-pongs, after one that wakes the other side."""
    pair.send(_GO_ON)
    pair.receive()
    trips = []
    for _ in range(pings):
        sent_ns = now_ns()
        pair.send(_GO_ON)
        answer = pair.receive()
        trips.append((sent_ns, answer, now_ns()))
    return trips


def _answer(pair: Pair, now_ns: Now, pings: int) -> None:
    """Answer `_ping` with the time, once its first message is there."""
    pair.send(_GO_ON)
    for _ in range(pings):
        pair.receive()
        pair.send(now_ns())


def _send_model(pair: Pair, model: ClockModel, timeout_s: float) -> None:
    """Send the part of a parent's model that a child needs, the floats as their bits."""
    for value in struct.unpack("5q", struct.pack(
            "2q3d", model.t_ref_ns, model.offset_ns, model.slope, model.bound_ns,
            model.slope_bound)):
        pair.send(value)
        pair.wait(timeout_s)


def _received_model(pair: Pair, silence_limit_s: float) -> ClockModel:
    """Return the model that `_send_model` sends, in its turn."""
    values = []
    for _ in range(5):
        values.append(pair.wait(silence_limit_s))
        pair.send(_GO_ON)
    t_ref_ns, offset_ns, slope, bound_ns, slope_bound = struct.unpack(
        "2q3d", struct.pack("5q", *values))
    return replace(ClockModel.identity(t_ref_ns), offset_ns=offset_ns, slope=slope,
                   bound_ns=bound_ns, slope_bound=slope_bound)

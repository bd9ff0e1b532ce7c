"""The tie between a profiler's clock and the rank's own, from markers between two stamps.

A profiler's clock is another one (torch: an estimate of CLOCK_REALTIME from the processor's
counter). Each marker limits the difference of the two; so do all together, at both ends of the
trace. Between the ends the difference is interpolated.

The traces of all ranks of a case as one, on the global clock: a process for each rank.

Chrome's trace event format (`ph` X, s, f, M; times in us), which Perfetto and chrome://tracing
read. What is unique within one rank's trace is made unique over all: process and thread ids, ids of
flows, and the correlation of a call with its kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from hpcbench.errors import TraceError
from hpcbench.profiling.profiled_cases import CLOCK_MARK, SAMPLE_MARK
from hpcbench.trace.clock import MAX_DRIFT, Nanoseconds


@dataclass(frozen=True, slots=True)
class Anchor:
    """The line from a profiler's time to the rank's own clock.

    Attributes:
        at_ns: profiler's time of the first end.
        offset_ns: profiler's less own time there.
        drift: gain of the profiler's clock per time, 1e-6 is 1 us/s.
        bound_ns: limit of the error of `to_local` at the two ends.
    """

    at_ns: int
    offset_ns: int
    drift: float
    bound_ns: float

    def to_local(self, profiler_ns: Nanoseconds) -> Nanoseconds:
        """Return the times on the rank's own clock, in ns (int64, any shape)."""
        drifted = np.rint(self.drift * (profiler_ns - self.at_ns)).astype(np.int64)
        return np.asarray(profiler_ns - self.offset_ns - drifted, dtype=np.int64)

    @property
    def is_steady(self) -> bool:
        """Return whether the two clocks ran alike, as far as real clocks do."""
        return abs(self.drift) <= MAX_DRIFT


def fit_anchor(stamps: Sequence[tuple[int, int]], marks_ns: Sequence[int]) -> Anchor:
    """Return the anchor from stamps (before, after) and the begins of the markers between them.

    The first half of them is from the begin of the trace, the second from its end. Raises
    TraceError if there is not a marker for each pair of stamps, or fewer than two.
    """
    if len(stamps) != len(marks_ns) or len(stamps) < 2:
        raise TraceError(f"the profiler's trace has {len(marks_ns)} of {len(stamps)} clock markers")
    half = len(stamps) // 2
    first = _end(stamps[:half], marks_ns[:half])
    last = _end(stamps[half:], marks_ns[half:])
    apart_ns = last.at_ns - first.at_ns
    change_ns = last.offset_ns - first.offset_ns
    unknown_ns = first.bound_ns + last.bound_ns
    # a change within what the markers leave open is none: short traces would show a false drift
    drift = change_ns / apart_ns if apart_ns > 0 and abs(change_ns) > unknown_ns else 0.0
    return Anchor(first.at_ns, first.offset_ns, drift, max(first.bound_ns, last.bound_ns)
                  + (abs(change_ns) if not drift else 0))


@dataclass(frozen=True, slots=True)
class _End:
    """The difference of the clocks at one end of a trace, and its limit, in ns."""

    at_ns: int
    offset_ns: int
    bound_ns: float


def _end(stamps: Sequence[tuple[int, int]], marks_ns: Sequence[int]) -> _End:
    """Return what all markers of one end allow together; if nothing does, what the narrowest does.
    """
    pairs = list(zip(stamps, marks_ns, strict=True))
    low = max(mark_ns - after_ns for (_, after_ns), mark_ns in pairs)
    high = min(mark_ns - before_ns for (before_ns, _), mark_ns in pairs)
    if low > high:  # stamps of the profiler are rounded, and its clock may be adjusted in between
        (before_ns, after_ns), mark_ns = min(pairs, key=lambda pair: pair[0][1] - pair[0][0])
        return _End(mark_ns, mark_ns - (before_ns + after_ns) // 2,
                    (after_ns - before_ns) / 2 + (low - high))
    return _End(marks_ns[0], (low + high) // 2, (high - low) / 2)


Event = dict[str, Any]
MOST_EVENTS = 400_000
"""Events of one merged file: about 100 MB of JSON, which a browser still opens."""
_IDS_OF_A_RANK = 1 << 32
"""Distance of the ids of two ranks: exact in JSON's doubles for up to 2**21 ranks."""
_THREADS_OF_A_RANK = 10_000
_UNIQUE_ARGS = ("External id", "correlation", "Sequence number")
_OF_THE_PROFILER = ("Spans", "Traces", "")
"""Pids of what the profiler says of itself; rows of their own in a viewer, without use here."""


@dataclass(frozen=True, slots=True)
class RankTrace:
    """One rank's events, with its host, and what maps the profiler's ns to global ns.

    An event's time is ``base_ns`` plus its ``ts``, which is in us.
    """

    rank: int
    host: str
    events: Sequence[Event]
    base_ns: int
    to_global: Callable[[Nanoseconds], Nanoseconds]


@dataclass(frozen=True, slots=True)
class Merged:
    """The events of all ranks, in order of time from 0 us at ``begin_ns`` of the global clock.

    ``n_dropped`` events are left out: the shortest of every rank that had more than its share.
    ``marks_ns`` has the global begin of each rank's samples: rank -> sample -> ns.
    """

    events: list[Event]
    begin_ns: int
    n_dropped: int
    marks_ns: Mapping[int, Mapping[int, int]]

    @property
    def spread_ns(self) -> int | None:
        """Return how far apart the ranks begin a sample at most; None of a single rank."""
        common = [set(marks) for marks in self.marks_ns.values()]
        starts = [[marks[number] for marks in self.marks_ns.values()]
                  for number in set.intersection(*common)] if len(common) > 1 else []
        return max((max(at) - min(at) for at in starts), default=None)


def merge(traces: Sequence[RankTrace], most_events: int = MOST_EVENTS) -> Merged:
    """Return one trace of all; each rank may fill an equal share of ``most_events``."""
    ranks = [_RankEvents(trace, most_events // max(len(traces), 1)) for trace in traces]
    timed = [event for rank in ranks for event in rank.timed()]
    begin_ns = min((event["ts"] for event in timed), default=0)
    for event in timed:
        event["ts"] = (event["ts"] - begin_ns) / 1000
    timed.sort(key=lambda event: (event["ts"], -event.get("dur", 0)))
    names = [event for rank in ranks for event in rank.names()]
    return Merged([*names, *timed], begin_ns, sum(rank.n_dropped for rank in ranks),
                  {rank.trace.rank: rank.marks_ns for rank in ranks})


@dataclass(slots=True)
class _RankEvents:
    """The events of one rank on their way into the merged trace."""

    trace: RankTrace
    share: int
    n_dropped: int = 0
    marks_ns: dict[int, int] = field(default_factory=dict)
    _threads: dict[tuple[Any, Any], int] = field(default_factory=dict)
    _main: int | None = None

    def timed(self) -> Iterator[Event]:
        """Yield what has a time, with ``ts`` still in global ns."""
        found = [event for event in self.trace.events
                 if event.get("ph") != "M" and "ts" in event
                 and event.get("pid") not in _OF_THE_PROFILER and event["name"] != CLOCK_MARK]
        kept = self._kept(found)
        ts_ns = np.array([round(event["ts"] * 1000) for event in kept], dtype=np.int64)
        for event, at_ns in zip(
                kept, self.trace.to_global(ts_ns + self.trace.base_ns).tolist(), strict=True):
            name = event["name"]
            if name.startswith(SAMPLE_MARK) and event.get("cat") == "user_annotation":
                self.marks_ns[int(name.removeprefix(SAMPLE_MARK))] = at_ns
                self._main = self._thread(event["pid"], event["tid"])
            yield {**self._unique(event), "ts": at_ns}

    def _kept(self, found: Sequence[Event]) -> Sequence[Event]:
        """Return the events of the rank's share: first the samples' markers, then the longest."""
        if len(found) <= self.share:
            return found
        self.n_dropped = len(found) - self.share
        return sorted(found, key=lambda event: (
            not event["name"].startswith(SAMPLE_MARK), -event.get("dur", 0)))[:self.share]

    def _unique(self, event: Event) -> Event:
        changed: Event = {
            "pid": self.trace.rank + 1, "tid": self._thread(event["pid"], event.get("tid"))}
        if "id" in event:
            changed["id"] = self._id(event["id"])
        if args := event.get("args"):
            changed["args"] = {name: self._id(value) if name in _UNIQUE_ARGS else value
                               for name, value in args.items()}
        return {**event, **changed}

    def _id(self, value: Any) -> Any:
        """Return an id that no other rank has; one that is no number gets the rank as prefix."""
        if isinstance(value, int):
            return self.trace.rank * _IDS_OF_A_RANK + value % _IDS_OF_A_RANK
        return f"{self.trace.rank}-{value}"

    def _thread(self, pid: Any, tid: Any) -> int:
        number = self._threads.setdefault((pid, tid), len(self._threads))
        return (self.trace.rank + 1) * _THREADS_OF_A_RANK + number

    def names(self) -> Iterator[Event]:
        """Yield the names of the rank's process and of its threads, the one with samples first.

        To be called after `timed`. Process ids are from 1, because 0 is the idle task's.
        """
        rank, pid = self.trace.rank, self.trace.rank + 1
        yield _named("process_name", pid, 0, name=f"rank {rank} ({self.trace.host})")
        yield _named("process_sort_index", pid, 0, sort_index=rank)
        known = {(event["pid"], event["tid"]): event["args"]["name"]
                 for event in self.trace.events
                 if event.get("ph") == "M" and event["name"] == "thread_name"}
        for (old_pid, old_tid), number in self._threads.items():
            name = known.get((old_pid, old_tid), f"thread {old_tid}")
            tid = pid * _THREADS_OF_A_RANK + number
            yield _named("thread_name", pid, tid, name=name)
            first = tid == self._main
            yield _named("thread_sort_index", pid, tid, sort_index=-1 if first else number)


def _named(what: str, pid: int, tid: int, **args: Any) -> Event:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": args}

"""The tie between a profiler's clock and the rank's own, from markers between two stamps.

A profiler's clock is another one (torch: an estimate of CLOCK_REALTIME from the processor's
counter). Each marker limits the difference of the two; so do all together, at both ends of the
trace. Between the ends the difference is interpolated.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hpcbench.errors import TraceError
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

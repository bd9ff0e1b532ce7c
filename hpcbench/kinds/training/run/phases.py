"""When the phases of a step begin and end: on the host's clock, or by events of a GPU.

Also when something is there that is to be exchanged: moments within the phases.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

PHASES = ("data", "forward", "backward", "exchange", "forward_backward", "optimizer", "balance")
"""In the order of a step.

``backward`` ends when the rank has its own last gradient, ``exchange`` when all are exchanged. Of a
pipeline ``exchange`` is what lies between the passes of micro-batches: waiting, and messages.
Strategies that cannot tell forward from backward have ``forward_backward``.
"""


class PhaseClock:
    """Durations of the phases of each step, in ns; a phase may have several parts in one step."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.steps: list[dict[str, int]] = []
        self._now_ns = now_ns
        self._begin: Any = None
        self._since: Any = None
        self._noted: list[tuple[dict[str, int], str, Any, Any, bool]] = []

    def begin(self) -> None:
        self.steps.append({})
        self._begin = self._since = self.now()

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        at = self.now()
        self._noted.append((self.steps[-1], phase, self._since, at, True))
        self._since = at

    def arrive(self, what: str) -> None:
        """Note how long after the step's begin something is there; of several times the last."""
        self._noted.append((self.steps[-1], what, self._begin, self.now(), False))

    def settle(self) -> None:
        """Fill in the phases since the last time; the device has nothing left to do."""
        for step, name, since, at, adds in self._noted:
            earlier = step.get(name, 0) if adds else 0
            step[name] = earlier + self.between_ns(since, at)
        self._noted.clear()

    def now(self) -> Any:
        """Return this moment, for `between_ns`."""
        return self._now_ns()

    def between_ns(self, since: Any, at: Any) -> int:
        """Return the time between two moments, in ns."""
        return int(at - since)


class EventPhaseClock(PhaseClock):
    """The same of a GPU, by events on the current stream; ``event`` makes one that is timed.

    Waiting for the device at the end of each phase would forbid overlap between phases and so
    lengthen the step; events only mark when the stream got there. They are read between steps.
    """

    def __init__(self, now_ns: Callable[[], int], event: Callable[[], Any]) -> None:
        super().__init__(now_ns)
        self._event = event

    def now(self) -> Any:
        """Return an event of the current stream."""
        event = self._event()
        event.record()
        return event

    def between_ns(self, since: Any, at: Any) -> int:
        """Return the time between two events, in ns, waiting until it is known."""
        at.synchronize()
        return int(since.elapsed_time(at) * 1e6)  # ms to ns


def phase_clock(device: torch.device, now_ns: Callable[[], int]) -> PhaseClock:
    if device.type == "cuda":
        return EventPhaseClock(now_ns, partial(torch.cuda.Event, enable_timing=True))
    if device.type == "mps":
        return EventPhaseClock(now_ns, partial(torch.mps.Event, enable_timing=True))
    return PhaseClock(now_ns)

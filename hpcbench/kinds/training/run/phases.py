"""When the phases of a step begin and end: on the host's clock, or by events of a GPU.

Also when something is there that is to be exchanged: moments within the phases.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

PHASES = ("data", "forward", "backward", "exchange", "forward_backward", "optimizer", "balance")
"""In the order of a step. A schedule that mixes forward and backward has ``forward_backward``.

``backward`` ends when the rank has its own last gradient, ``exchange`` when all are exchanged.
"""


class PhaseClock:
    """Durations of the phases of each step, in ns; a phase may have several parts in one step."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.steps: list[dict[str, int]] = []
        self._now_ns = now_ns
        self._begin_ns = self._since_ns = 0

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self._begin_ns = self._since_ns = self._now_ns()

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        at_ns = self._now_ns()
        step = self.steps[-1]
        step[phase] = step.get(phase, 0) + at_ns - self._since_ns
        self._since_ns = at_ns

    def arrive(self, what: str) -> None:
        """Note how long after the step's begin something is there; of several times the last."""
        self.steps[-1][what] = self._now_ns() - self._begin_ns

    def settle(self) -> None:
        """Fill in what was not yet known when it ended; the device has nothing left to do."""


class EventPhaseClock(PhaseClock):
    """The same of a GPU, by CUDA events on the current stream.

    Waiting for the device at the end of each phase would forbid overlap between phases and so
    lengthen the step; events only mark when the stream got there. They are read between steps.
    """

    def __init__(self, now_ns: Callable[[], int]) -> None:
        super().__init__(now_ns)
        self._marks: list[tuple[int, str, torch.cuda.Event]] = []
        self._begins: dict[int, torch.cuda.Event] = {}
        self._arrivals: dict[tuple[int, str], torch.cuda.Event] = {}

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self._begins[len(self.steps) - 1] = self._mark("")

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        self._mark(phase)

    def arrive(self, what: str) -> None:
        """Note how long after the step's begin something is there; of several times the last."""
        self._arrivals[len(self.steps) - 1, what] = _recorded()

    def _mark(self, phase: str) -> torch.cuda.Event:
        event = _recorded()
        self._marks.append((len(self.steps) - 1, phase, event))
        return event

    def settle(self) -> None:
        """Read the events of the steps since the last time."""
        for (_, _, since), (index, phase, event) in zip(self._marks, self._marks[1:],
                                                        strict=False):
            if phase:
                step = self.steps[index]
                step[phase] = step.get(phase, 0) + _between_ns(since, event)
        for (index, what), event in self._arrivals.items():
            self.steps[index][what] = _between_ns(self._begins[index], event)
        for read in (self._marks, self._begins, self._arrivals):
            read.clear()


def _recorded() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def _between_ns(since: torch.cuda.Event, event: torch.cuda.Event) -> int:
    return int(since.elapsed_time(event) * 1e6)  # ms to ns


def phase_clock(device: torch.device, now_ns: Callable[[], int]) -> PhaseClock:
    """Return the clock for steps on a device."""
    return EventPhaseClock(now_ns) if device.type == "cuda" else PhaseClock(now_ns)

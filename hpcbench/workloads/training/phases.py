"""When the phases of a step begin and end: on the host's clock, or by events of a GPU."""

from __future__ import annotations

from collections.abc import Callable

import torch

PHASES = ("data", "forward", "backward", "forward_backward", "optimizer", "balance")
"""In the order of a step. A schedule that mixes forward and backward has ``forward_backward``."""


class PhaseClock:
    """Durations of the phases of each step, in ns; a phase may have several parts in one step."""

    def __init__(self, now_ns: Callable[[], int]) -> None:
        self.steps: list[dict[str, int]] = []
        self._now_ns = now_ns
        self._since_ns = 0

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self._since_ns = self._now_ns()

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        at_ns = self._now_ns()
        step = self.steps[-1]
        step[phase] = step.get(phase, 0) + at_ns - self._since_ns
        self._since_ns = at_ns

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

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self._mark("")

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        self._mark(phase)

    def _mark(self, phase: str) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self._marks.append((len(self.steps) - 1, phase, event))

    def settle(self) -> None:
        """Read the events of the steps since the last time."""
        for (_, _, since), (index, phase, event) in zip(self._marks, self._marks[1:],
                                                        strict=False):
            if phase:
                step = self.steps[index]
                step[phase] = step.get(phase, 0) + int(since.elapsed_time(event) * 1e6)  # ms to ns
        self._marks.clear()


def phase_clock(device: torch.device, now_ns: Callable[[], int]) -> PhaseClock:
    """Return the clock for steps on a device."""
    return EventPhaseClock(now_ns) if device.type == "cuda" else PhaseClock(now_ns)

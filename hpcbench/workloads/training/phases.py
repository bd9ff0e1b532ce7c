"""When the phases of a step begin and end, on the host's clock."""

from __future__ import annotations

from collections.abc import Callable

PHASES = ("data", "forward", "backward", "optimizer")
"""In the order of a step. A schedule that mixes forward and backward has ``forward_backward``."""


class PhaseClock:
    """Durations of the phases of each step, in ns; a phase may have several parts in one step.

    ``synchronize`` waits until the device is done with what was issued: on GPUs it costs overlap
    between phases, so it is called only where phases are asked for.
    """

    def __init__(self, now_ns: Callable[[], int], synchronize: Callable[[], None]) -> None:
        self.steps: list[dict[str, int]] = []
        self._now_ns = now_ns
        self._synchronize = synchronize
        self._since_ns = 0

    def begin(self) -> None:
        """Begin a step."""
        self.steps.append({})
        self._since_ns = self._now_ns()

    def end(self, phase: str) -> None:
        """End a part of a phase; the next one begins now."""
        self._synchronize()
        at_ns = self._now_ns()
        step = self.steps[-1]
        step[phase] = step.get(phase, 0) + at_ns - self._since_ns
        self._since_ns = at_ns

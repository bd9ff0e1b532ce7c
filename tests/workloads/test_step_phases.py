"""Phases of the strategies; those of real steps are in tests/mpi/test_training.py."""

from __future__ import annotations

from hpcbench.kinds.training.run.strategies.base import PhaseClock
from hpcbench.kinds.training.run.strategies.pipeline import StageClock
from hpcbench.trace.schema import ARRIVAL


def test_what_lies_between_passes_is_exchange() -> None:
    times = iter(range(0, 1000, 10))
    phases, clock = PhaseClock(lambda: next(times)), StageClock(exchanges=True)
    assert clock.timed("forward", lambda: "before any step") == "before any step"
    clock.phases = phases
    phases.begin()  # 0
    for phase in ("forward", "backward", "backward"):
        assert clock.timed(phase, lambda: 7) == 7
    phases.end("exchange")
    phases.resolve()
    (step,) = phases.steps
    assert step == {"exchange": 60, "forward": 10, "backward": 20, f"{ARRIVAL}1": 80}

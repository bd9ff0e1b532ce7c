"""Stages of a pipeline that tell when they compute: what lies between is waiting and messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from torch.distributed.pipelining import PipelineStage

from hpcbench.kinds.training.run.phases import PhaseClock
from hpcbench.trace.schema import ARRIVAL

Result = TypeVar("Result")


class StageClock:
    """The phases of the step that is under way, for all stages of a rank."""

    def __init__(self, *, exchanges: bool) -> None:
        """``exchanges``: there are other replicas of the pipeline, which get its gradients."""
        self.phases: PhaseClock | None = None
        self._exchanges = exchanges

    def timed(self, phase: str, compute: Callable[[], Result]) -> Result:
        """Return what is computed; its time is of the phase, that before it of ``exchange``."""
        if self.phases is None:
            return compute()
        self.phases.end("exchange")
        result = compute()
        self.phases.end(phase)
        if phase == "backward" and self._exchanges:
            self.phases.arrive(f"{ARRIVAL}1")  # of several the last: all own gradients are there
        return result


class TimedStage(PipelineStage):  # type: ignore[misc]
    """A stage whose forward and backward passes are phases, of each micro-batch."""

    clock: StageClock

    def forward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run a micro-batch forward; its input is there."""
        return self.clock.timed(
            "forward", lambda: PipelineStage.forward_one_chunk(self, *arguments, **named))

    def backward_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Run a micro-batch backward, or that half of it that others wait for."""
        return self.clock.timed(
            "backward", lambda: PipelineStage.backward_one_chunk(self, *arguments, **named))

    def backward_weight_one_chunk(self, *arguments: Any, **named: Any) -> Any:
        """Compute the gradients of the weights, where that is a half of its own."""
        return self.clock.timed(
            "backward", lambda: PipelineStage.backward_weight_one_chunk(self, *arguments, **named))

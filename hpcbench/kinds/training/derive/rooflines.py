"""What binds a training step, and those of its phases of which it is known what they need.

Memory is moved at least so often: forward reads the parameters and writes the activations, backward
reads both and writes the gradients, and the optimizer reads all it has and writes parameters and
its state. Each part of an accumulation does the first two again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcbench.kinds.training.plan.flops import EXECUTED
from hpcbench.kinds.training.plan.predict import Demands, is_predicted, predict
from hpcbench.kinds.training.plan.workload import CHUNKED, Training, training_of
from hpcbench.reduce.ceilings import ceilings_of
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import Demand, Roofline, roofline

STEP = "step"
FORWARD, BACKWARD, BOTH, EXCHANGE, OPTIMIZER = (
    "forward", "backward", "forward_backward", "exchange", "optimizer")


@dataclass(frozen=True, slots=True)
class _Moved:
    """The least bytes of memory of each phase; None where what a rank holds is not known."""

    forward: float | None = None
    backward: float | None = None
    optimizer: float | None = None

    @property
    def passes(self) -> float | None:
        """Return those of forward and backward."""
        return None if self.forward is None or self.backward is None else (
            self.forward + self.backward)

    @property
    def step(self) -> float | None:
        """Return those of a step."""
        passes = self.passes
        return None if passes is None or self.optimizer is None else passes + self.optimizer


def rooflines(
    item: CaseResult, hardware: Mapping[str, Any], phase_s: Mapping[str, float],
    held: Mapping[str, int],
) -> tuple[Roofline, ...]:
    """Return what binds the step, then what binds its phases; nothing without a ceiling.

    ``phase_s`` and ``held`` are those of the record. Of other packages' strategies and models
    nothing is predicted, so nothing is known.
    """
    work = training_of(item.case)
    if item.statistics is None or not work.trains or not is_predicted(work):
        return ()
    ceilings, needs = ceilings_of(item, work.dtype, hardware), predict(work)
    moved = _moved(work, needs, held)
    whole = Demand(needs.hardware_flops, moved.step, needs.wire_bytes, needs.collectives)
    parts = [(STEP, item.statistics.median_s, whole)]
    if phase_s and _meets_once(needs):
        parts += _phases(work, needs, moved, phase_s)
    found = (roofline(demand, time_s, ceilings, name) for name, time_s, demand in parts)
    return tuple(one for one in found if one is not None)


def _meets_once(needs: Demands) -> bool:
    """Return whether all communication is between a rank's first gradient and its optimizer."""
    return {call.collective for one in needs.of_ranks for call in one.calls} <= {"all_reduce"} and (
        len(needs.of_ranks) == 1)


def _phases(
    work: Training, needs: Demands, moved: _Moved, phase_s: Mapping[str, float],
) -> Iterator[tuple[str, float, Demand]]:
    """Yield name, time and demand of each part; gradients travel from backward on."""
    if work.tp * work.pp > 1:
        return
    flops, exchanged = needs.hardware_flops, (needs.wire_bytes, needs.collectives)
    forward = _forward_flops(work)
    names = [name for name in (FORWARD, BACKWARD, BOTH, EXCHANGE) if name in phase_s]
    if forward is not None and FORWARD in names and BACKWARD in names:
        yield FORWARD, phase_s[FORWARD], Demand(forward, moved.forward)
        names.remove(FORWARD)
        passes = Demand(flops - forward, moved.backward, *exchanged)
    else:
        passes = Demand(flops, moved.passes, *exchanged)
    if names:
        yield " + ".join(names), sum(phase_s[name] for name in names), passes
    if OPTIMIZER in phase_s and moved.optimizer:
        yield OPTIMIZER, phase_s[OPTIMIZER], Demand(memory_bytes=moved.optimizer)


def _forward_flops(work: Training) -> float | None:
    """Return a rank's FLOPs of forward: a third, where all that is multiplied has gradients."""
    counted = dict(work.flops).get(EXECUTED)
    if counted is None or work.of_images or work.adapters or work.loss == CHUNKED:
        return None
    return counted / (3 * work.dp)


def _moved(work: Training, needs: Demands, held: Mapping[str, int]) -> _Moved:
    """Return the least bytes by what the rank that holds most was seen to hold.

    Activations that were not counted are predicted. Those of a pipeline are of several stages.
    """
    names = ("parameters", "gradients", "optimizer_state")
    if work.pp > 1 or any(name not in held for name in names):
        return _Moved()
    weights, gradients, state = (held[name] for name in names)
    kept = held.get("activations", needs.memory.activations)
    parts = work.accumulation
    return _Moved(forward=parts * (weights + kept), backward=parts * (weights + kept + gradients),
                  optimizer=2 * weights + gradients + 2 * state)

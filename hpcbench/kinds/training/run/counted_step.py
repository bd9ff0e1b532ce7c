"""One more step, after all that are timed, in which everything that it does is counted.

Counting makes a step longer, so it is never a sample. By then all is as in any step: buckets are in
order, stages agree on shapes, weights and states are there.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Any

from hpcbench.backends.python_group import Called, watched
from hpcbench.kinds.training.plan import traffic
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.kinds.training.run.phases import phase_clock
from hpcbench.kinds.training.run.step_counter import StepCounter
from hpcbench.kinds.training.run.strategies.base import Batch, Strategy

_COMPILED = "the kernels that torch.compile makes are no operations that torch counts"
_SILENT = "its groups move nothing"
_ACTIVATIONS = "results of operations, but for copies and gradients of parameters"


def count_step(spec: Training, strategy: Strategy, batch: Batch) -> dict[str, Any]:
    """Take a step on a batch; all ranks call it. The weights are other ones then.

    ``calls`` maps each collective to its number, size and bytes on the wire; ``flops`` are by
    `StepCounter`, without ``scores_again_flops``; ``activations`` are their most bytes at once, as
    `LiveBytes` knows them. ``missing`` says why something of it is not there.
    """
    parameters = [one for module in strategy.modules() for one in module.parameters()]
    counter = StepCounter(parameters)
    phases = phase_clock(strategy.place.device, time.perf_counter_ns)
    phases.begin()
    with watched(strategy.groups(), counter.note), counter:
        strategy.forward_backward(batch, phases)
        counter.settled()
        strategy.update(phases)
        strategy.rebalance(phases)
    missing = dict(_missing(spec, strategy, counter))
    found: dict[str, Any] = {"missing": missing}
    if "calls" not in missing:
        found["calls"] = _together(counter.calls)
    if "flops" not in missing:
        found["flops"] = counter.flops - counter.scores_again_flops
        found["scores_again_flops"] = counter.scores_again_flops
    if "activations" not in missing:
        found |= {"activations": counter.activations, "activations_of": _ACTIVATIONS}
    return found


def _missing(
    spec: Training, strategy: Strategy, counter: StepCounter,
) -> Iterable[tuple[str, str]]:
    """Yield what cannot be counted, and why."""
    if spec.communication == "off":
        yield "calls", _SILENT
    elif counter.unknown:
        yield "calls", f"it called {', '.join(sorted(counter.unknown))}, whose sizes are not known"
    elif strategy.uncounted:
        yield "calls", strategy.uncounted
    elif spec.compile and spec.tp > 1:
        yield "calls", "what compiled blocks call is no operation that torch shows"
    if spec.compile:
        yield "flops", _COMPILED
        yield "activations", _COMPILED


def _together(calls: Iterable[Called]) -> Mapping[str, list[int]]:
    """Return each collective's calls, size and bytes on the wire, as predictions have them."""
    parts = (traffic.calls(one.collective, one.ranks, [one.size_bytes]) for one in calls)
    return {one.collective: [one.count, one.size_bytes, one.wire_bytes]
            for one in traffic.together(parts)}

"""HB149: numbers of a training step that contradict one another, or more than its devices can."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.kinds.training.derive.rates import Record, mfu, rates, violations
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem

SHOWN_DEFINITION = "megatron"
"""Of MFU, where a plan has it: it counts the least that a causal model cannot do without."""


def shown_definition(work: Training) -> str | None:
    """Return whose FLOPs the table's MFU counts; None where the plan counted none."""
    names = [name for name, _ in work.flops]
    return SHOWN_DEFINITION if SHOWN_DEFINITION in names else next(iter(names), None)


def contradictions(
    case: Case, time_s: float, hardware: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield HB149 for everything that does not hold between a training's numbers."""
    work = case.workload
    computed = rates(work, time_s) if isinstance(work, Training) else None
    if not isinstance(work, Training) or computed is None or not work.trains:
        return
    definition, peaks = shown_definition(work), hardware.get("peak_flops", {})
    shares = {} if definition is None else {
        f"MFU ({definition})": mfu(work, definition, time_s, case.world_size, peaks).share}
    for text in violations(Record(
            step_s=time_s, samples_per_s=computed.samples_per_s, tokens_per_s=computed.tokens_per_s,
            global_batch=work.global_batch, seq_length=work.seq_length, utilisations=shares)):
        yield Problem("HB149", f"{text}: mend it and reduce again")

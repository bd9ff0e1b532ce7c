"""Rates and utilisations of a training step, and what must hold between them.

Every rate is derived once, from one step time; rates are never averaged. Tokens and samples count
once, however many ranks see them: tensor- and pipeline-parallel ranks work on the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem

_SHOWN_DEFINITION = "megatron"
"""Of MFU, where a plan has it: it counts the least that a causal model cannot do without."""
_RELATIVE = 1e-9
"""How far numbers may be apart that follow from each other by a multiplication."""


@dataclass(frozen=True, slots=True)
class Rates:
    """What all ranks together train in a second; images have no tokens."""

    samples_per_s: float
    tokens_per_s: float | None


@dataclass(frozen=True, slots=True)
class Utilisation:
    """A share of the peak of all devices; ``reason`` says why it is None, and is else empty."""

    share: float | None
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Record:
    """What is published of one case; `violations` says whether it can be true.

    ``step_s`` is the time that the rates were derived from, in seconds; ``utilisations`` are MFU
    and HFU by name (``mfu megatron``), None where the peak is not known. Images have no tokens.
    """

    step_s: float
    samples_per_s: float
    tokens_per_s: float | None
    global_batch: int
    seq_length: int
    utilisations: Mapping[str, float | None] = field(default_factory=dict)


def rates(work: Training, step_s: float) -> Rates | None:
    """Return global batch / t and tokens / t; None for a time of 0.

    The step holds all parts of an accumulation, so the whole global batch counts.
    """
    if not step_s > 0:
        return None
    return Rates(work.global_batch / step_s, work.tokens and work.tokens / step_s)


def shown_definition(work: Training) -> str | None:
    """Return whose FLOPs the table's MFU counts; None where the plan counted none."""
    names = [name for name, _ in work.flops]
    return _SHOWN_DEFINITION if _SHOWN_DEFINITION in names else next(iter(names), None)


def mfu(
    work: Training, definition: str, step_s: float, ranks: int, peaks: Mapping[str, float],
) -> Utilisation:
    """Return the model FLOPs of a step / (t x ranks x peak of one device for the dtype).

    Chowdhery et al., "PaLM: Scaling Language Modeling with Pathways" (arXiv 2204.02311), section
    4.1 and appendix B: what is computed twice counts once. ``definition`` names what is counted
    (`Training.flops`); ``peaks`` are ``hardware.peak_flops``: declared, never guessed. Raises
    KeyError of another definition.
    """
    return hfu(work, dict(work.flops)[definition], step_s, ranks, peaks)


def hfu(
    work: Training, hardware_flops: int, step_s: float, ranks: int, peaks: Mapping[str, float],
) -> Utilisation:
    """Return the FLOPs that devices execute in a step / (t x ranks x peak of one device).

    ``hardware_flops`` hold what checkpointing computes again (`kinds.training.plan.predict`).
    Korthikanti et al., "Reducing Activation Recomputation in Large Transformer Models" (arXiv
    2205.05198), section 6.3: hardware FLOPs utilisation.
    """
    if work.dtype not in peaks:
        return Utilisation(None, f"hardware.peak_flops has no {work.dtype}")
    if not step_s > 0:
        return Utilisation(None, "the step took no time")
    return Utilisation(hardware_flops / (step_s * ranks * peaks[work.dtype]))


def violations(record: Record) -> tuple[str, ...]:
    """Return every relation between the numbers of a record that does not hold, in words."""
    return tuple(_violations(record))


def _violations(record: Record) -> Iterator[str]:
    numbers = {"step time": record.step_s, "samples/s": record.samples_per_s}
    numbers |= {} if record.tokens_per_s is None else {"tokens/s": record.tokens_per_s}
    bad = [f"{name} is {value:g}" for name, value in numbers.items()
           if not (math.isfinite(value) and value > 0)]
    if bad:
        yield f"{', '.join(bad)}: not a positive number"
        return
    tokens = record.samples_per_s * record.seq_length
    if record.tokens_per_s is not None and not math.isclose(
            record.tokens_per_s, tokens, rel_tol=_RELATIVE):
        yield (f"tokens/s {record.tokens_per_s:.9g} is not samples/s x sequence length = "
               f"{tokens:.9g}")
    batch = record.samples_per_s * record.step_s
    if not math.isclose(batch, record.global_batch, rel_tol=_RELATIVE):
        yield (f"samples/s x step time = {batch:.9g} is not the global batch "
               f"{record.global_batch}")
    for name, share in record.utilisations.items():
        if share is not None and not 0 <= share <= 1:
            yield (f"{name} is {share:.1%}: more than 0 to 100 %; either the peak in "
                   "hardware.peak_flops or the time is wrong")


def contradictions(
    case: Case, time_s: float, hardware: Mapping[str, Any],
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

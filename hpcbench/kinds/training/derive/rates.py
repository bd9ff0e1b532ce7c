"""Rates and utilisations of a training step, what must hold between them, and how they scale.

Every rate is derived once, from one step time; rates are never averaged. Tokens and samples count
once, however many ranks see them: tensor- and pipeline-parallel ranks work on the same ones.

Trainings that differ in nothing but their ranks are compared with that on the fewest.
With a batch for each replica more replicas train more samples in a step, at best in the same time
(weak scaling: Gustafson, Reevaluating Amdahl's Law, Comm. ACM 31, 1988). Where ranks share one
replica the step has the same samples, at best in a part of the time (strong scaling). The
efficiency is the same quotient for both: samples/s of n ranks / (n / m x samples/s of m ranks).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from hpcbench.kinds.training.derive.work import LAID_OUT
from hpcbench.kinds.training.plan.registry import alone_by, trained_part
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped

_SHOWN_DEFINITION = "megatron"
"""Of MFU, where a plan has it: it counts the least that a causal model cannot do without."""
HOUR_S = 3600
_RELATIVE = 1e-9
"""How far numbers may be apart that follow from each other by a multiplication."""
Key = tuple[object, ...]
Timed = tuple[Case, float]
"""A case, and the samples that it trains in a second."""


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

    ``hardware_flops`` hold what checkpointing computes again, as torch executes it or as papers
    count it (`kinds.training.plan.predict.hardware_flops`). Korthikanti et al., "Reducing
    Activation Recomputation in Large Transformer Models" (arXiv 2205.05198), section 6.3: hardware
    FLOPs utilisation.
    """
    if work.dtype not in peaks:
        return Utilisation(None, f"hardware.peak_flops has no {work.dtype}")
    if not step_s > 0:
        return Utilisation(None, "the step took no time")
    return Utilisation(hardware_flops / (step_s * ranks * peaks[work.dtype]))


def step_cost(case: Case, step_s: float, hardware: Mapping[str, Any]) -> float | None:
    """Return what a step costs: t x ranks x declared price of a device in that time.

    ``hardware`` is the section of the sweep file. As in an MFU a rank has a device of its own. The
    currency is that of ``price_per_device_hour``. None without a price, or of another device.
    """
    price = hardware.get("price_per_device_hour")
    if price is None or hardware.get("device_type") not in (None, case.device):
        return None
    return step_s / HOUR_S * case.world_size * float(price)


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
            yield (f"{name} is {share:.1%}: more than 0 to 100 %; either the declared peak or the "
                   "time is wrong. Mend hardware.peak_flops in plan.json of the run's folder, "
                   "then: hpcbench reduce FOLDER")


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    """A case beside the one that it is compared with, which is of the same training.

    ``kind`` is ``weak`` if each rank has as many samples in both, ``strong`` if all together have.
    ``efficiency`` is 1 where samples/s grow as the ranks do; more is possible. ``base_case`` is the
    id of the other case, on ``base_ranks`` ranks; ``base_alone`` what makes that one a training of
    one rank, or nothing.
    """

    kind: str
    efficiency: float
    base_case: str
    base_ranks: int
    base_samples_per_s: float | None
    base_alone: str


def scaling(items: Iterable[CaseResult]) -> dict[str, ScalingRecord]:
    """Return how each training scales, by case id; those without anything to compare are left out.

    A strategy is compared with itself on the fewest ranks of the run. If those are several, it is
    compared with ``single``, and adapters with the same adapters over ``single``. Options of the
    strategy are the same; blocks may differ.
    """
    measured = ((item.case, rates(training_of(item.case), item.statistics.median_s))
                for item in items if training_of(item.case).trains and item.statistics)
    groups = grouped((_same(case), (case, computed.samples_per_s))
                     for case, computed in measured if computed)
    return {case.case_id: record for group in groups.values() for case, record in _of_group(group)}


def _same(case: Case) -> Key:
    """Return what must be equal: model, adapters, step, and where it runs."""
    work = training_of(case)
    return (case.backend, case.device, case.env, case.mode, trained_part(work),
            *((name, value) for name, value in asdict(work).items() if name not in LAID_OUT))


def _of_group(group: Sequence[Timed]) -> Iterator[tuple[Case, ScalingRecord]]:
    alone = [timed for timed in group if alone_by(training_of(timed[0]))]
    layouts = grouped(((training_of(timed[0]).strategy, training_of(timed[0]).options), timed)
                      for timed in group)
    for members in layouts.values():
        least = min(members, key=lambda timed: timed[0].world_size)
        base, base_rate = alone[0] if alone and least[0].world_size > 1 else least
        for case, rate in members:
            kind = _kind(case, base)
            if kind and case.world_size > base.world_size:
                efficiency = rate * base.world_size / (case.world_size * base_rate)
                yield case, ScalingRecord(kind, efficiency, base.case_id, base.world_size,
                                          base_rate, alone_by(training_of(base)))


def _kind(case: Case, base: Case) -> str | None:
    samples, base_samples = training_of(case).global_batch, training_of(base).global_batch
    if samples * base.world_size == base_samples * case.world_size:
        return "weak"
    return "strong" if samples == base_samples else None

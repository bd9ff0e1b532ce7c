"""How trainings that differ in nothing but their ranks scale: samples/s beside those of the fewest.

With a batch for each replica more replicas train more samples in a step, at best in the same time
(weak scaling: Gustafson, Reevaluating Amdahl's Law, Comm. ACM 31, 1988). Where ranks share one
replica the step has the same samples, at best in a part of the time (strong scaling). The
efficiency is the same quotient for both: samples/s of n ranks / (n / m x samples/s of m ranks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass

from hpcbench.kinds.training.derive.rates import rates
from hpcbench.kinds.training.plan.lookup import alone_by, trained_part
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult

_LAID_OUT = ("strategy", "options", "dp", "tp", "pp", "flops", "calls")
"""Fields of a training that depend on its layout on ranks."""
Key = tuple[object, ...]
Timed = tuple[Case, float]
"""A case, and the samples that it trains in a second."""


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
    groups: dict[Key, list[Timed]] = defaultdict(list)
    for item in items:
        work, stats = training_of(item.case), item.statistics
        if work.trains and stats and (computed := rates(work, stats.median_s)):
            groups[_same(item.case)].append((item.case, computed.samples_per_s))
    return {case.case_id: record for group in groups.values() for case, record in _of_group(group)}


def _same(case: Case) -> Key:
    """Return what must be equal: model, adapters, step, and where it runs."""
    work = training_of(case)
    return (case.backend, case.device, case.env, case.mode, trained_part(work),
            *((name, value) for name, value in asdict(work).items() if name not in _LAID_OUT))


def _of_group(group: Sequence[Timed]) -> Iterator[tuple[Case, ScalingRecord]]:
    alone = [timed for timed in group if alone_by(training_of(timed[0]))]
    layouts: dict[Key, list[Timed]] = defaultdict(list)
    for timed in group:
        work = training_of(timed[0])
        layouts[work.strategy, work.options].append(timed)
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

"""How trainings that differ in nothing but their ranks scale: samples/s beside those of the fewest.

With a batch for each replica more replicas train more samples in a step, at best in the same time
(weak scaling: Gustafson, Reevaluating Amdahl's Law, Comm. ACM 31, 1988). Where ranks share one
replica the step has the same samples, at best in a part of the time (strong scaling). The
efficiency is the same quotient for both: samples/s of n ranks / (n / m x samples/s of m ranks).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from hpcbench.kinds.training.derive.rates import rates
from hpcbench.kinds.training.plan.lookup import alone_by, trained_part
from hpcbench.kinds.training.plan.workload import Training, training_of
from hpcbench.plan.case import Case
from hpcbench.reduce.results import CaseResult

_LAID_OUT = ("strategy", "options", "dp", "tp", "pp", "flops", "calls")
"""Fields of a training that depend on its layout on ranks."""
Key = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Scaling:
    """A case beside the one that it is compared with, which is of the same training.

    ``kind`` is ``weak`` if each rank has as many samples in both, ``strong`` if all together have.
    ``efficiency`` is 1 where samples/s grow as the ranks do; more is possible.
    """

    item: CaseResult
    base: CaseResult
    kind: str
    efficiency: float


@dataclass(frozen=True, slots=True)
class ScalingRecord:
    """What `Scaling` says, for the record of its case.

    ``base_case`` is the id of the case that it is compared with, on ``base_ranks`` ranks;
    ``base_alone`` what makes that one a training of one rank, or nothing.
    """

    kind: str
    efficiency: float
    base_case: str
    base_ranks: int
    base_samples_per_s: float | None
    base_alone: str


def scaling_record(scaled: Scaling) -> ScalingRecord:
    """Return what is stored of a case's scaling."""
    base = scaled.base.case
    return ScalingRecord(
        kind=scaled.kind, efficiency=scaled.efficiency, base_case=base.case_id,
        base_ranks=base.world_size, base_samples_per_s=samples_per_s(scaled.base),
        base_alone=alone_by(training_of(base)))


def scaling(items: Iterable[CaseResult]) -> dict[str, Scaling]:
    """Return how each training scales, by case id; those without anything to compare are left out.

    A strategy is compared with itself on the fewest ranks of the run. If those are several, it is
    compared with ``single``, and adapters with the same adapters over ``single``. Options of the
    strategy are the same; blocks may differ.
    """
    groups: dict[Key, list[CaseResult]] = defaultdict(list)
    for item in items:
        if item.case.kind == "training" and training_of(item.case).trains and (
                samples_per_s(item) is not None):
            groups[_same(item.case)].append(item)
    return {scaled.item.case.case_id: scaled for group in groups.values()
            for scaled in _of_group(group)}


def samples_per_s(item: CaseResult) -> float | None:
    """Return what a training trains in a second, None where it was not timed."""
    if item.statistics is None:
        return None
    computed = rates(training_of(item.case), item.statistics.median_s)
    return None if computed is None else computed.samples_per_s


def _same(case: Case) -> Key:
    """Return what must be equal: model, adapters, step, and where it runs."""
    fields: Mapping[str, object] = asdict(training_of(case))
    return (case.backend, case.device, case.env, case.mode, trained_part(training_of(case)),
            *((name, value) for name, value in fields.items() if name not in _LAID_OUT))


def _of_group(group: Sequence[CaseResult]) -> Iterator[Scaling]:
    alone = [item for item in group if alone_by(training_of(item.case))]
    layouts: dict[Key, list[CaseResult]] = defaultdict(list)
    for item in group:
        layouts[training_of(item.case).strategy, training_of(item.case).options].append(item)
    for members in layouts.values():
        least = min(members, key=lambda item: item.case.world_size)
        base = alone[0] if alone and least.case.world_size > 1 else least
        for item in members:
            if item.case.world_size > base.case.world_size and (
                    kind := _kind(training_of(item.case), item.case.world_size,
                                  training_of(base.case), base.case.world_size)):
                yield Scaling(item, base, kind, _efficiency(item, base))


def _kind(work: Training, ranks: int, base: Training, base_ranks: int) -> str | None:
    if work.global_batch * base_ranks == base.global_batch * ranks:
        return "weak"
    return "strong" if work.global_batch == base.global_batch else None


def _efficiency(item: CaseResult, base: CaseResult) -> float:
    ours, theirs = samples_per_s(item), samples_per_s(base)
    assert ours is not None and theirs is not None  # noqa: S101  (only such are in a group)
    return ours * base.case.world_size / (item.case.world_size * theirs)

"""What a training strategy tells a plan (docs/training.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hpcbench.plan.primitives.spec import Values
from hpcbench.plan.workload import Option, Training


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the ranks of a job are divided: replicas, and ranks of each by tensor and pipeline."""

    dp: int = 1
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """One way to spread a training step over ranks.

    Attributes:
        name: as sweep files write it.
        meaning: one line for people.
        runner: ``module:class`` (`workloads.training.strategies`).
        options: its options; degrees are options named ``tp`` and ``pp``.
        ranks: on how many it runs where a sweep says ``all``; None: on all of the job.
        degrees: how ``ranks`` are divided under these options, or why they cannot be.
        unfit: why a training does not suit it (heads, layers, micro-batches ...), or None.
        calls: the collectives of torch.distributed that a step makes.
    """

    name: str
    meaning: str
    runner: str
    degrees: Callable[[int, Mapping[str, Option]], Degrees | str]
    unfit: Callable[[Training], str | None]
    calls: Callable[[Training], tuple[str, ...]]
    options: Mapping[str, Values] = field(default_factory=lambda: MappingProxyType({}))
    ranks: int | None = None

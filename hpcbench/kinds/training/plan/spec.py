"""What a training strategy tells a plan (docs/training.md)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import Option, Values


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
        runner: ``module:class`` (`kinds.training.run.strategies`).
        options: its options; degrees are options named ``tp`` and ``pp``.
        ranks: on how many it runs with these options where a sweep says ``all``; None: on all of
            the job.
        degrees: how ``ranks`` are divided under these options, or why they cannot be.
        unfit: why a training does not suit it (heads, layers, micro-batches ...), or None.
        calls: the collectives of torch.distributed that a step makes.
        idle: which options have no effect, and under which of the others (``with tp=1``).
        modules: Python modules that it needs beside torch.
    """

    name: str
    meaning: str
    runner: str
    degrees: Callable[[int, Mapping[str, Option]], Degrees | str]
    unfit: Callable[[Training], str | None]
    calls: Callable[[Training], tuple[str, ...]]
    options: Mapping[str, Values] = field(default_factory=lambda: MappingProxyType({}))
    idle: Callable[[Mapping[str, Option]], Mapping[str, str]] = lambda _options: {}
    modules: tuple[str, ...] = ()
    ranks: Callable[[Mapping[str, Option]], int | None] = lambda _options: None

    def without_idle(self, options: Mapping[str, Option]) -> dict[str, Option]:
        """Return the options that have an effect under one another, and those that were changed."""
        idle = self.idle(options)
        return {name: value for name, value in options.items()
                if name not in idle or value != self.options[name].default}

    def ineffective(self, options: Mapping[str, Option]) -> str | None:
        """Return which option was changed that has no effect, or None: two cases would be one."""
        return next((f"{name}={options[name]} has no effect {why}"
                     for name, why in sorted(self.idle(options).items())
                     if options[name] != self.options[name].default), None)

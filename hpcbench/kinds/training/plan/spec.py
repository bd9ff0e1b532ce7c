"""What a training strategy provides to a plan (docs/training.md, docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from hpcbench.config.implementations import OptionAxes
from hpcbench.kinds.training.plan.layout import Layout
from hpcbench.kinds.training.plan.tensors import Tensor
from hpcbench.kinds.training.plan.traffic import Calls
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.options import NO_OPTIONS, Option, Values, in_order


@dataclass(frozen=True, slots=True)
class Degrees:
    """How the ranks of a job are divided: replicas, and ranks of each by tensor and pipeline."""

    dp: int = 1
    tp: int = 1
    pp: int = 1


@dataclass(frozen=True, slots=True)
class StrategySpec:
    """One way to spread a training step over ranks: plain data and pure functions, without torch.

    Attributes:
        name: as sweep files write it.
        meaning: one line for people.
        runner: ``module:class`` of its `Strategy`, or of a function that returns one.
        degrees: how so many ranks are divided under these options, or why they cannot be.
        calls: the collectives of torch.distributed that a step makes.
        unfit: why a training does not suit it (heads, layers, micro-batches ...), or None.
        layout: what is divided, copied and cast; memory and traffic are predicted from it.
        traffic: what a rank with these parameters calls in a step beyond what follows from the
            layout.
        options: its options; degrees are options named ``tp`` and ``pp``.
        together: values that options have where a sweep sets none of them, instead of their
            defaults.
        idle: which options have no effect, and under which of the others (``with tp=1``).
        later_options: options that were added when results existed: a default of them is no part
            of a case's id.
        ranks: on how many it runs with these options where a sweep says ``all``; None: on all of
            the job.
        modules: Python modules that it needs beside torch.
        divides_model: whether a rank has a part of each layer, or some of the layers.
        trained_part: what is trained if that is not the whole model; the same for all layouts.
        alone_by: what makes a training one of one rank (``over=single``), or nothing: other
            numbers of ranks are compared with such a training.
        cuts: options that only say how calls are cut into pieces: of two trainings that differ in
            nothing else, and for which the same calls are predicted, both are the same program.
        also: what others call it; messages name it to who writes one of these.
        order: strategies are listed by it, then by name.
    """

    name: str
    meaning: str
    runner: str
    degrees: Callable[[int, Mapping[str, Option]], Degrees | str]
    calls: Callable[[Training], tuple[str, ...]]
    unfit: Callable[[Training], str | None] = lambda _work: None
    layout: Callable[[Training], Layout] = lambda _work: Layout()
    traffic: Callable[[Training, Sequence[Tensor]], Iterable[Calls]] = lambda _work, _held: ()
    options: Mapping[str, Values] = field(default_factory=lambda: NO_OPTIONS)
    together: Mapping[str, Option] = field(default_factory=lambda: MappingProxyType({}))
    idle: Callable[[Mapping[str, Option]], Mapping[str, str]] = lambda _options: MappingProxyType(
        {})
    later_options: tuple[str, ...] = ()
    ranks: Callable[[Mapping[str, Option]], int | None] = lambda _options: None
    modules: tuple[str, ...] = ()
    divides_model: bool = False
    trained_part: Callable[[Training], tuple[object, ...]] = lambda _work: ()
    alone_by: Callable[[Training], str] = lambda _work: ""
    cuts: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    order: int = 1000

    def axes(self, given: OptionAxes) -> dict[str, tuple[Option, ...]]:
        """Return the values of each option where a sweep gives these; the rest as usual."""
        unset = {} if given.keys() & self.together.keys() else self.together
        return {name: given.get(name, (unset.get(name, values.default),))
                for name, values in self.options.items()}

    def without_idle(self, options: Mapping[str, Option]) -> dict[str, Option]:
        """Return the options that have an effect under one another, and those that were changed."""
        idle = self.idle(options)
        return {name: value for name, value in options.items()
                if name not in idle or value != self.options[name].default}

    def with_defaults(self, work: Training) -> Training:
        """Return a training with all options: idle ones and those of later versions, too."""
        given = dict(work.options)
        if self.options.keys() <= given.keys():
            return work  # as most are: a plan asks for this many times a case
        usual = {name: values.default for name, values in self.options.items()}
        return replace(work, options=in_order({**usual, **given}))

    def ineffective(self, options: Mapping[str, Option]) -> str | None:
        """Return which option was changed that has no effect, or None: two cases would be one."""
        return next((f"{name}={options[name]} has no effect {why}"
                     for name, why in sorted(self.idle(options).items())
                     if options[name] != self.options[name].default), None)

    def identifying(self, options: Iterable[tuple[str, Option]]) -> dict[str, Option]:
        """Return the options that are part of a case's id."""
        return {name: value for name, value in options
                if name not in self.later_options or value != self.options[name].default}

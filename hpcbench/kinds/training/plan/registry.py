"""Which training strategies there are, and what that of a training defines.

Those of this package are ``SPECS`` of the modules of `strategies`. A plug-in names its
`StrategySpec` by an entry point of the group ``hpcbench.strategies`` (docs/plugins.md). Where the
strategy of a training is not installed, defaults are used.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import TypeVar

from hpcbench.config.section import OptionAxes
from hpcbench.kinds.training.plan import strategies as package
from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.models import Tensor
from hpcbench.kinds.training.plan.spec import Calls, Layout, Pipelining, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.points import Option, Values
from hpcbench.registry import Registry

ENTRY_POINTS = "hpcbench.strategies"
"""The group of entry points; each is a `StrategySpec` and has its name."""
Result = TypeVar("Result")


@cache
def registry() -> Registry[StrategySpec]:
    """Return what is installed, in listed order; that does not change while a process runs."""
    return Registry("strategy {}", _ours(), ENTRY_POINTS, (StrategySpec,), adopted=_of_plugin)


def strategies() -> tuple[StrategySpec, ...]:
    return tuple(registry().values())


def strategy(name: str) -> StrategySpec | None:
    """Return the strategy of a name, or None if it is not installed."""
    return registry().get(name)


def usable(name: str, axes: OptionAxes) -> StrategySpec | None:
    """Return the strategy of a name, or a stand-in that can run nowhere; None of unknown names.

    A stand-in takes the place of a plug-in that cannot be used: its cases are skips with the
    reason. Nobody knows the options of the plug-in, so those in ``axes`` are its options.
    """
    if name not in (broken := registry().broken):
        return strategy(name)
    reason = f"strategy {name} cannot be used: {broken[name]}"
    return StrategySpec(
        name, reason, runner="", degrees=lambda _ranks, _options: reason, calls=lambda _work: (),
        options={option: Values(values[0], values) for option, values in axes.items()
                 if option != "backend"})


def is_ours(spec: StrategySpec) -> bool:
    return registry().is_ours(spec)


def _ours() -> Iterator[StrategySpec]:
    for module in pkgutil.iter_modules(package.__path__):
        yield from import_module(f"{package.__name__}.{module.name}").SPECS


def _of_plugin(spec: StrategySpec) -> StrategySpec:
    """Return the strategy with its package among its needs: a rank may lack what others have."""
    own = spec.runner.partition(":")[0].partition(".")[0]
    return replace(spec, modules=tuple(dict.fromkeys((own, *spec.modules))))


def layout_of(work: Training) -> Layout:
    """Return how a training lies on its ranks."""
    return _result(work, lambda spec: spec.layout(spec.with_defaults(work)), Layout())


def own_traffic(work: Training, held: Sequence[Tensor]) -> Iterable[Calls]:
    """Return what a rank with these parameters calls beyond what follows from the layout."""
    return _result(work, lambda spec: tuple(spec.traffic(work, held)), ())


def adapters_of(work: Training) -> Adapters | None:
    """Return the adapters of a training, None where the model itself is trained."""
    return layout_of(work).adapters


def pipelining(work: Training) -> Pipelining | None:
    """Return how a training is pipelined, None where it is not."""
    return layout_of(work).pipeline


def trained_part(work: Training) -> tuple[object, ...]:
    """Return what is trained if that is not the whole model; the same for all layouts of it."""
    return _result(work, lambda spec: spec.trained_part(work), ())


def alone_by(work: Training) -> str:
    """Return what makes a training one of one rank, such as ``single``, or nothing."""
    return _result(work, lambda spec: spec.alone_by(work), "")


def ranks_of(spec: StrategySpec, options: Mapping[str, Option]) -> int | None:
    """Return on how many ranks a strategy runs with these options, None: on all of the job."""
    return _result(spec, lambda spec: spec.ranks(options), None)


def _result(
    of: Training | StrategySpec, function: Callable[[StrategySpec], Result], default: Result,
) -> Result:
    """Return what a function of a strategy returns.

    A function of a plug-in that raises costs only the cases of its strategy. The plan skips these
    and gives the reason (`build_workload`).
    """
    spec = strategy(of.strategy) if isinstance(of, Training) else of
    if spec is None:
        return default
    try:
        return function(spec)
    except Exception:
        if is_ours(spec):
            raise
        return default

"""Which training strategies there are, and what that of a training defines.

Those of this package are ``SPECS`` of the modules of `strategies`. A plug-in names its
`StrategySpec` by an entry point of the group ``hpcbench.strategies`` (docs/plugins.md). Where the
strategy of a training is not installed, defaults are used.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TypeVar

from hpcbench.config.section import OptionAxes
from hpcbench.entry_points import Offer, offers
from hpcbench.kinds.training.plan import strategies as package
from hpcbench.kinds.training.plan.adapters import Adapters
from hpcbench.kinds.training.plan.models import Tensor
from hpcbench.kinds.training.plan.spec import Calls, Layout, Pipelining, StrategySpec
from hpcbench.kinds.training.plan.workload import Training
from hpcbench.plan.points import Option, Values

ENTRY_POINTS = "hpcbench.strategies"
"""The group of entry points; each is a `StrategySpec` and has its name."""
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Registry:
    """Strategies by name, as they are listed, and what plug-ins offer.

    The ``problem`` of an offer says why its strategy cannot be used; it is empty where it can.
    """

    strategies: Mapping[str, StrategySpec]
    plugins: tuple[Offer, ...] = ()


@cache
def registry() -> Registry:
    """Return what is installed; that does not change while a process runs."""
    specs, plugins = {spec.name: spec for spec in _ours()}, []
    for offer in offers(ENTRY_POINTS):
        problem = offer.problem or next(_problems(offer, specs), "")
        plugins.append(replace(offer, problem=problem))
        if not problem:
            specs[offer.name] = _of_plugin(offer.value)
    ordered = sorted(specs.values(), key=lambda spec: (spec.order, spec.name))
    return Registry(MappingProxyType({spec.name: spec for spec in ordered}), tuple(plugins))


def strategies() -> tuple[StrategySpec, ...]:
    return tuple(registry().strategies.values())


def strategy(name: str) -> StrategySpec | None:
    return registry().strategies.get(name)


def is_ours(spec: StrategySpec) -> bool:
    return any(spec is own for own in _ours())


def usable(name: str, axes: OptionAxes) -> StrategySpec | None:
    """Return the strategy of a name, or a stand-in that can run nowhere; None of unknown names.

    A stand-in takes the place of a plug-in that cannot be used: its cases are skips with the
    reason. Nobody knows the options of the plug-in, so those in ``axes`` are its options.
    """
    broken = [one for one in registry().plugins if one.name == name and one.problem]
    if name in registry().strategies or not broken:
        return strategy(name)
    reason = f"the plug-in {broken[0].origin} cannot be used: {broken[0].problem}"
    return StrategySpec(
        name, reason, runner="", degrees=lambda _ranks, _options: reason, calls=lambda _work: (),
        options={option: Values(values[0], values) for option, values in axes.items()
                 if option != "backend"})


@cache
def _ours() -> tuple[StrategySpec, ...]:
    return tuple(spec for module in pkgutil.iter_modules(package.__path__)
                 for spec in import_module(f"{package.__name__}.{module.name}").SPECS)


def _of_plugin(spec: StrategySpec) -> StrategySpec:
    """Return the strategy with its package among its needs: a rank may lack what others have."""
    own = spec.runner.partition(":")[0].partition(".")[0]
    return replace(spec, modules=tuple(dict.fromkeys((own, *spec.modules))))


def _problems(offer: Offer, known: Mapping[str, StrategySpec]) -> Iterator[str]:
    """Yield why what an entry point names cannot be used as a strategy."""
    spec = offer.value
    if not isinstance(spec, StrategySpec):
        yield f"offers a {type(spec).__name__}, no StrategySpec"
        return
    if spec.name != offer.name:
        yield f"the entry point is named {offer.name}, the strategy {spec.name}"
    if spec.name in known:
        yield f"there is a strategy {spec.name} already"
    if not isinstance(spec.runner, str) or not all(spec.runner.partition(":")):
        yield f"runner: {spec.runner!r} is not written as module:class"
    for item in fields(spec):
        value = getattr(spec, item.name)
        if str(item.type).startswith("Callable") and not callable(value):
            yield f"{item.name} must be a function"
    if not isinstance(spec.options, Mapping) or not all(
            isinstance(name, str) and isinstance(values, Values) and values.allows(values.default)
            for name, values in spec.options.items()):
        yield "options must be a mapping of names to Values whose default is one of them"
    elif not isinstance(spec.together, Mapping) or not all(
            name in spec.options and spec.options[name].allows(value)
            for name, value in spec.together.items()):
        yield "together must be a mapping of options to values that they may have"
    elif "backend" in spec.options:
        yield "an option cannot be named backend: that is an axis of every strategy"


def layout_of(work: Training) -> Layout:
    return _result(work, lambda spec: spec.layout(spec.with_defaults(work)), Layout())


def own_traffic(work: Training, held: Sequence[Tensor]) -> Iterable[Calls]:
    """Return what a rank with these parameters calls beyond what follows from the layout."""
    return _result(work, lambda spec: tuple(spec.traffic(work, held)), ())


def adapters_of(work: Training) -> Adapters | None:
    """Return the adapters of a training, None where the model itself is trained."""
    return layout_of(work).adapters


def pipelining(work: Training) -> Pipelining | None:
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

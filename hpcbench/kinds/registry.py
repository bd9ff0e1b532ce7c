"""Which kinds of cases there are: the rooms of this package, and those of plug-ins.

A room is a package below `hpcbench.kinds` whose ``__init__`` has a ``SPEC``. A plug-in names its
`KindSpec` by an entry point of the group ``hpcbench.kinds`` (docs/plugins.md).
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import hpcbench.kinds
from hpcbench.entry_points import offers
from hpcbench.kinds.guarded_presenter import GuardedPresenter
from hpcbench.kinds.kind import KindSpec, Planner, Presenter

if TYPE_CHECKING:
    from hpcbench.plan.case import Case

ENTRY_POINTS = "hpcbench.kinds"
"""The group of entry points; each is a `KindSpec`."""


@cache
def kinds() -> Mapping[str, KindSpec]:
    """Return the kinds that are installed, by name, in the order in which they are listed.

    A plug-in that cannot be imported counts as a kind of the entry point's name; its cases are
    skips. What is installed does not change while a process runs, so it is looked up once.
    """
    return _scan()[0]


@cache
def broken_kinds() -> Mapping[str, str]:
    """Return why the kinds of some entry points cannot be used, by the entry point's name."""
    return _scan()[1]


@cache
def _scan() -> tuple[Mapping[str, KindSpec], Mapping[str, str]]:
    specs = {spec.name: spec for spec in _rooms()}
    broken: dict[str, str] = {}
    for offer in offers(ENTRY_POINTS):
        spec = offer.value
        if offer.problem:
            broken[offer.name] = offer.problem
        elif not isinstance(spec, KindSpec):
            broken[offer.name] = f"{offer.origin} offers a {type(spec).__name__}, no KindSpec"
        elif spec.name in specs:
            broken[offer.name] = f"there is a kind {spec.name} already"
        else:
            specs[spec.name] = spec
    for name, problem in broken.items():
        specs.setdefault(name, KindSpec(name, "", "", "", "", "", problem=problem))
    ordered = sorted(specs.values(), key=lambda one: (one.order, one.name))
    return MappingProxyType({spec.name: spec for spec in ordered}), MappingProxyType(broken)


def _rooms() -> Iterator[KindSpec]:
    for module in pkgutil.iter_modules(hpcbench.kinds.__path__):
        if module.ispkg:
            yield import_module(f"{hpcbench.kinds.__name__}.{module.name}").SPEC


def planner_of(case: Case) -> Planner:
    """Return a planner of a case's kind. Raises KeyError if the kind is not installed."""
    return kinds()[case.kind].planner()


def is_of_plugin(path: str) -> bool:
    """Return whether a side, as ``module:object``, comes from another package than hpcbench."""
    return not path.startswith("hpcbench.")


@cache
def presenter_of(kind: str) -> Presenter[Any, Any]:
    """Return the presenter of a kind; of one that is not installed what presents any kind.

    That of a plug-in is guarded: it never raises.
    """
    spec = kinds().get(kind)
    if spec is None:
        return Presenter()
    return GuardedPresenter(spec.presenter) if is_of_plugin(spec.presenter_path) else (
        spec.presenter())


def kind_aliases() -> dict[str, str]:
    """Return other names of kinds, with the name that each stands for."""
    return {alias: spec.name for spec in kinds().values() for alias in spec.aliases}

"""Which kinds of cases there are: the rooms of this package, and those of plug-ins.

A room is a package below `hpcbench.kinds` whose ``__init__`` has a ``SPEC``. A plug-in names its
`KindSpec` by an entry point of the group ``hpcbench.kinds`` (docs/plugins.md).
"""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import hpcbench.kinds
from hpcbench.errors import PluginError
from hpcbench.kinds.kind import Planner, Presenter
from hpcbench.kinds.spec import KindSpec
from hpcbench.registry import Registry

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
    found = Registry("kind {}", _rooms(), ENTRY_POINTS, (KindSpec,))
    broken = {name: KindSpec(name, problem=reason) for name, reason in found.broken.items()}
    return MappingProxyType({**found, **broken})


def _rooms() -> Iterator[KindSpec]:
    for module in pkgutil.iter_modules(hpcbench.kinds.__path__):
        if module.ispkg:
            yield import_module(f"{hpcbench.kinds.__name__}.{module.name}").SPEC


def spec_of(kind: str) -> KindSpec:
    """Return a kind; of one that is not installed what makes its cases skips."""
    return kinds().get(kind) or KindSpec(kind, problem="it is not installed")


def planner_of(case: Case) -> Planner:
    """Return a planner of a case's kind; of one that is not installed what keeps its cases."""
    return spec_of(case.kind).planner()


@cache
def presenter_of(kind: str) -> Presenter[Any, Any]:
    """Return the presenter of a kind; of one that is not installed what presents any kind.
    """
    spec = kinds().get(kind)
    return spec.presenter() if spec else Presenter()


def catalogue() -> dict[str, dict[str, Any]]:
    """Return what sweep files can name: group -> name -> facts, as JSON values, of all kinds.

    The catalogue of a plug-in that fails is left out.
    """
    groups: dict[str, dict[str, Any]] = {}
    for spec in kinds().values():
        with contextlib.suppress(PluginError):
            for group, names in spec.catalogue().items():
                groups[group] = {**groups.get(group, {}), **names}
    return groups


def kind_aliases() -> dict[str, str]:
    """Return other names of kinds, with the name that each stands for."""
    return {alias: spec.name for spec in kinds().values() for alias in spec.aliases}

"""Which kinds of cases there are, and how a side of one is loaded when it is first needed.

A kind has a block (`config.section`) and four sides: a planner (`plan.case`), a runner
(`measure.runner`), a deriver (`reduce.kind_facts`) and a presenter (`views.presenter`). A kind of
this package is a package below `hpcbench.kinds` whose ``__init__`` has a ``SPEC``. A plug-in names
its `KindSpec` by an entry point of the group ``hpcbench.kinds`` (docs/plugins.md)."""

from __future__ import annotations

import contextlib
import pkgutil
from collections.abc import Callable, Iterator, Mapping
from functools import cache, partial
from importlib import import_module
from inspect import isroutine
from types import MappingProxyType
from typing import Any, TypeVar

import hpcbench.kinds
from hpcbench.errors import ConfigError, PluginError
from hpcbench.records import dataclass
from hpcbench.registry import Registry, in_this_package, load

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of case: its names, and where its block and its sides are, as ``module:object``.

    ``aliases`` are other names in sweep files. Kinds are listed by ``order``, then by name. Making
    one imports nothing. ``problem`` is why a plug-in's kind cannot be used; stand-ins then make its
    cases skips. ``catalogue_path``'s function gives group -> name -> facts, as JSON values.
    ``host_path``'s class takes functions of files as implementations (`kinds.function.plan`).
    ``in_every_summary``: whether a run without its cases has the columns of summary.csv that only
    the kind has."""

    name: str
    block: str = ""
    planner_path: str = ""
    runner_path: str = ""
    deriver_path: str = ""
    presenter_path: str = ""
    aliases: tuple[str, ...] = ()
    order: int = 100
    problem: str = ""
    catalogue_path: str = ""
    host_path: str = ""
    in_every_summary: bool = True

    @property
    def is_plugin(self) -> bool:
        """Return whether the kind, by its planner, is another package's."""
        return not in_this_package(self.planner_path)

    def block_class(self) -> Any:
        """Return the class of its blocks, whose annotations are known. Raises PluginError."""
        return self._load(self.block, _resolved)

    def made(self, path: str) -> Any:
        """Return the object that a path's class or function makes; ``runner_path`` imports torch.

        Raises PluginError if a plug-in is at fault."""
        return self._load(path, _made)

    def guarded(self, side: str, path: str, stand_in: Callable[[str], S]) -> S:
        """Return a side; where a plug-in's fails, its stand-in with the reason."""
        try:
            own = self.made(path)
        except PluginError as error:
            return stand_in(str(error))
        guarded: Any = own if in_this_package(path) else Guarded(f"its {side}", own, stand_in)
        return guarded  # type: ignore[no-any-return]

    def _load(self, path: str, use: Callable[[Any], Any]) -> Any:
        """Return ``use`` of a path's object. Raises PluginError if a plug-in is at fault."""
        if self.problem:
            raise PluginError(self.problem)
        try:
            return use(load(path))
        except (Exception, SystemExit) as error:
            if not self.is_plugin:
                raise
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(f"{path} cannot be loaded: {reason}") from error


class Guarded:
    """A side of a plug-in's kind that is not called again once it has raised.

    Its stand-in answers then. ``problem`` describes the exception."""

    def __init__(self, title: str, own: Any, stand_in: Callable[[str], Any]) -> None:
        self._title, self._own, self._stand_in = title, own, stand_in
        self.problem = ""

    def __getattr__(self, name: str) -> Any:
        usual = getattr(self._stand_in(self.problem), name)
        return partial(self._call, name) if isroutine(usual) else getattr(self._own, name, usual)

    def _call(self, name: str, *values: Any, **options: Any) -> Any:
        if not self.problem:
            try:
                answer = getattr(self._own, name)(*values, **options)
                return [*answer] if isinstance(answer, Iterator) else answer
            except ConfigError:
                raise
            except Exception as error:
                self.problem = f"{self._title}'s {name} raised {type(error).__name__}: {error}"
        return getattr(self._stand_in(self.problem), name)(*values, **options)


def _made(side: Callable[[], S]) -> S:
    return side()


def _resolved(block: Any) -> Any:
    block.model_rebuild()  # what its annotations name may not be there
    return block


ENTRY_POINTS = "hpcbench.kinds"
"""The group of entry points; each is a `KindSpec`."""


@cache
def kinds() -> Mapping[str, KindSpec]:
    """Return the kinds that are installed, by name, in the order in which they are listed.

    A plug-in that cannot be imported counts as a kind of the entry point's name; its cases are
    skips. The installed plug-ins do not change while a process runs, so they are read once."""
    found = offered_kinds()
    broken = {name: KindSpec(name, problem=reason) for name, reason in found.broken.items()}
    return MappingProxyType({**found, **broken})


@cache
def offered_kinds() -> Registry[KindSpec]:
    return Registry("kind {}", _rooms(), ENTRY_POINTS, (KindSpec,))


def _rooms() -> Iterator[KindSpec]:
    for module in pkgutil.iter_modules(hpcbench.kinds.__path__):
        if module.ispkg:
            yield import_module(f"{hpcbench.kinds.__name__}.{module.name}").SPEC


def spec_of(kind: str) -> KindSpec:
    """Return a kind; if it is not installed, a spec that makes its cases skips."""
    return kinds().get(kind) or KindSpec(kind, problem="it is not installed")


def catalogue() -> dict[str, dict[str, Any]]:
    """Return the names for sweep files of all kinds: group -> name -> facts, as JSON values.

    The catalogue of a plug-in that fails is left out."""
    groups: dict[str, dict[str, Any]] = {}
    for spec in kinds().values():
        with contextlib.suppress(PluginError):
            catalogue_of_kind = spec.made(spec.catalogue_path) if spec.catalogue_path else {}
            for group, names in catalogue_of_kind.items():
                groups[group] = {**groups.get(group, {}), **names}
    return groups


def kind_aliases() -> dict[str, str]:
    """Return other names of kinds, with the name that each stands for."""
    return {alias: spec.name for spec in kinds().values() for alias in spec.aliases}

"""Where the sides of a kind are, as texts, and how one is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from inspect import isroutine
from typing import TYPE_CHECKING, Any, TypeVar

from hpcbench.errors import ConfigError, PluginError
from hpcbench.kinds.kind import Deriver, Planner, Presenter, Runner

if TYPE_CHECKING:
    from hpcbench.config.section import Block

S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class KindSpec:
    """A kind of case: its names, and where its block and its sides are, as ``module:object``.

    ``aliases`` are other names in sweep files. Kinds are listed by ``order``, then by name. Making
    one imports nothing. ``problem`` says why a plug-in's kind cannot be used; stand-ins then make
    its cases skips. ``catalogue_path``'s function gives group -> name -> facts, as JSON values.
    """

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

    @property
    def is_plugin(self) -> bool:
        """Return whether the kind, by its planner, is another package's."""
        return not in_this_package(self.planner_path)

    def block_class(self) -> type[Block]:
        """Return the class of the kind's blocks in sweep files."""
        try:
            return self._block()
        except PluginError:
            return _load("hpcbench.config.section:UnusableBlock")  # type: ignore[no-any-return]

    def planner(self) -> Planner:
        """Return a new planner; where a plug-in's fails, its cases are one skip with the reason."""
        def stand_in(problem: str) -> Planner:
            return _load(  # type: ignore[no-any-return]
                "hpcbench.plan.points:UnusablePlanner")(self.name, problem)

        try:
            self._block()
            return self._guarded("planner", self.planner_path, stand_in)
        except PluginError as error:
            return stand_in(str(error))

    def runner(self) -> Runner:
        """Return a new runner; this imports torch. Raises PluginError if it cannot be loaded."""
        return self._load(self.runner_path, _made)  # type: ignore[no-any-return]

    def deriver(self) -> Deriver:
        """Return a new deriver. Raises PluginError if it cannot be loaded."""
        return self._load(self.deriver_path, _made)  # type: ignore[no-any-return]

    def presenter(self) -> Presenter[Any, Any]:
        """Return a new presenter; where a plug-in's fails, that of any kind, with the reason."""
        try:
            return self._guarded("presenter", self.presenter_path, Presenter)
        except PluginError as error:
            return Presenter(str(error))

    def catalogue(self) -> Mapping[str, Mapping[str, Any]]:
        """Return what sweep files can name. Raises PluginError."""
        return self._load(self.catalogue_path, _made) if self.catalogue_path else {}

    def _block(self) -> type[Block]:
        return self._load(self.block, _resolved)  # type: ignore[no-any-return]

    def _guarded(self, side: str, path: str, stand_in: Callable[[str], S]) -> S:
        own = self._load(path, _made)
        guarded: Any = own if in_this_package(path) else Guarded(f"its {side}", own, stand_in)
        return guarded  # type: ignore[no-any-return]

    def _load(self, path: str, use: Callable[[Any], Any]) -> Any:
        """Return what a path names, used. Raises PluginError if a plug-in is at fault."""
        if self.problem:
            raise PluginError(self.problem)
        try:
            return use(_load(path))
        except (Exception, SystemExit) as error:
            if not self.is_plugin:
                raise
            reason = f"{type(error).__name__}: {error}"
            raise PluginError(f"{path} cannot be loaded: {reason}") from error


class Guarded:
    """A side of a plug-in's kind that is not asked again once it has raised.

    What stands in for it answers then. ``problem`` says what it raised.
    """

    def __init__(self, title: str, own: Any, stand_in: Callable[[str], Any]) -> None:
        self._title, self._own, self._stand_in = title, own, stand_in
        self.problem = ""

    def __getattr__(self, name: str) -> Any:
        usual = getattr(self._stand_in(self.problem), name)
        return partial(self._ask, name) if isroutine(usual) else getattr(self._own, name, usual)

    def _ask(self, name: str, *values: Any, **options: Any) -> Any:
        if not self.problem:
            try:
                answer = getattr(self._own, name)(*values, **options)
                return [*answer] if isinstance(answer, Iterator) else answer
            except ConfigError:
                raise
            except Exception as error:
                self.problem = f"{self._title}'s {name} raised {type(error).__name__}: {error}"
        return getattr(self._stand_in(self.problem), name)(*values, **options)


def in_this_package(path: str) -> bool:
    """Return whether a ``module:name`` is ours, so that what it raises is no fault of a plug-in."""
    return path.startswith("hpcbench.")


def _made(side: Callable[[], S]) -> S:
    return side()


def _resolved(block: type[Block]) -> type[Block]:
    block.model_rebuild()  # what its annotations name may not be there
    return block


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

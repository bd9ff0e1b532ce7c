"""Where the sides of a kind are, as texts, and how one is loaded when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, TypeVar

from hpcbench.errors import PluginError
from hpcbench.kinds.kind import Deriver, Planner, Presenter, Runner

if TYPE_CHECKING:
    from hpcbench.config.section import Block

S = TypeVar("S")
_UNUSABLE = "hpcbench.kinds.unusable:Unusable"


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
            return self._checked_block()
        except PluginError:
            return _load("hpcbench.config.section:UnusableBlock")  # type: ignore[no-any-return]

    def planner(self) -> Planner:
        """Return a new planner; that of a plug-in is guarded, so that it costs its cases only."""
        try:
            self._checked_block()
            planner = self._made(self.planner_path, Planner)  # type: ignore[type-abstract]
            return _load("hpcbench.plan.unusable:GuardedPlanner")(
                self.name, planner) if self.is_plugin else planner
        except PluginError as error:
            return _load("hpcbench.plan.unusable:UnusablePlanner")(  # type: ignore[no-any-return]
                self.name, str(error))

    def runner(self) -> Runner:
        """Return a new runner; this imports torch."""
        return self._made(self.runner_path, Runner, f"{_UNUSABLE}Runner")  # type: ignore[type-abstract]

    def deriver(self) -> Deriver:
        """Return a new deriver."""
        return self._made(self.deriver_path, Deriver, f"{_UNUSABLE}Deriver")

    def presenter(self) -> Presenter[Any, Any]:
        """Return a new presenter; that of a plug-in is guarded: it costs its own tables only."""
        make = partial(self._made, self.presenter_path, Presenter, "hpcbench.kinds.kind:Presenter")
        return make() if in_this_package(self.presenter_path) else _load(
            "hpcbench.views.guarded:GuardedPresenter")(make)

    def catalogue(self, read: Callable[[Any], S]) -> S | None:
        """Return what ``read`` makes of ``catalogue_path``'s function. Raises PluginError."""
        return self._load(self.catalogue_path, read) if self.catalogue_path else None

    def _checked_block(self) -> type[Block]:
        block = self._load(self.block)
        if not self.is_plugin:
            return block  # type: ignore[no-any-return]
        try:
            if issubclass(block, _load("hpcbench.config.section:Block")):
                block.model_rebuild()  # what its annotations name may not be there
                return block  # type: ignore[no-any-return]
            problem = "no subclass of Block"
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
        raise PluginError(f"{self.block} cannot be used: {problem}")

    def _made(self, path: str, side: type[S], stand_in: str = "") -> S:
        """Return a new object of a class, or of ``stand_in`` where a plug-in is at fault.

        Raises PluginError with the reason where nothing stands in.
        """
        try:
            made = self._load(path, lambda factory: factory())
            if not isinstance(made, side):
                raise PluginError(f"{path} cannot be used: it is no {side.__name__}")
            return made
        except PluginError as error:
            if not stand_in:
                raise
            return _load(stand_in)(str(error))  # type: ignore[no-any-return]

    def _load(self, path: str, use: Callable[[Any], Any] = lambda found: found) -> Any:
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


def in_this_package(path: str) -> bool:
    """Return whether a ``module:name`` is ours, so that what it raises is no fault of a plug-in."""
    return path.startswith("hpcbench.")


def _load(path: str) -> Any:
    module, _, name = path.partition(":")
    return getattr(import_module(module), name)

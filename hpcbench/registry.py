"""Objects by name: those of this package, and those that other packages offer by entry points.

There is one registry for each thing that a plug-in can add (docs/plugins.md). A part of hpcbench
that nothing else imports offers what it has in the same way: its entry points lie beside it."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import cache, lru_cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from hpcbench.errors import PluginError
from hpcbench.records import dataclass

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

T = TypeVar("T")
FACTS = "entry_points.txt"
"""The file of entry points: of a part here, and in the metadata of an installed package."""


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """One entry point: its name, its distribution and version, and the objects that it names.

    ``problem``: why none of them is used; it is empty where all are."""

    name: str
    origin: str
    values: tuple[T, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True)
class PartPoint:
    """An entry point of a part of this package, in a checkout as where it is installed."""

    group: str
    name: str
    value: str
    dist: None = None

    def load(self) -> Any:
        return load(self.value)


def load(path: str, package: str | None = None) -> Any:
    """Return the object of ``module:object``, whose module is imported; ``.module`` is one of
    ``package``."""
    module, _, name = path.partition(":")
    return getattr(import_module(module, package), name)


def in_this_package(path: str) -> bool:
    """Return whether a ``module:object`` is ours: its exceptions are no fault of a plug-in."""
    return path.startswith("hpcbench.")


def entry_points(group: str) -> list[PartPoint | EntryPoint]:
    """Return the entry points of a group, of parts and of packages.

    importlib.metadata takes 40 ms to load: it is asked where a package may have such points."""
    points: list[PartPoint | EntryPoint] = [one for one in _of_parts() if one.group == group]
    if f"[{group}]" in _facts(tuple(sys.path)):
        from importlib.metadata import entry_points as every

        points += every(group=group)
    return points


@cache
def _of_parts() -> tuple[PartPoint, ...]:
    """Return the entry points that lie in the folders of this package, and of its kinds."""
    points, group = [], ""
    here = os.path.dirname(__file__)  # noqa: PTH120
    for line in "\n".join((*_texts(here), *_texts(f"{here}/kinds"))).splitlines():
        name, is_point, value = (part.strip() for part in line.partition("="))
        if is_point:
            points.append(PartPoint(group, name, value))
        elif name:
            group = name.strip("[]")
    return tuple(points)


@lru_cache(maxsize=1)
def _facts(places: tuple[str, ...]) -> str:
    """Return all files of entry points in the folders from which Python imports, one text."""
    return "\n".join(text for place in places for text in _texts(place, "-info"))


def _texts(folder: str, ending: str = "") -> Iterator[str]:
    """Yield the files of entry points in the folders of a folder: pathlib takes twice as long."""
    with suppress(OSError), os.scandir(folder or os.curdir) as entries:
        for entry in entries:
            if entry.name.endswith(ending) and entry.is_dir():
                with suppress(OSError), open(  # noqa: PTH123
                        f"{entry.path}/{FACTS}", encoding="utf-8", errors="replace") as file:
                    yield file.read()


def _names(one: Any) -> tuple[str, ...]:
    return (one.name, *getattr(one, "aliases", ()))


def _order(item: tuple[str, Any]) -> tuple[int, str]:
    """Return the sort key: objects with an ``order`` by that; others stay as they come."""
    name, one = item
    return (one.order, name) if hasattr(one, "order") else (0, "")


def _as_it_is(one: T) -> T:
    return one


class Registry(Mapping[str, T]):
    """Name -> object: ours, then those that entry points of ``group`` name, read when it is made.

    An entry point names an object of a class of ``of``, or a list of them: all are used, or none.
    One that cannot be imported, offers something else, or takes a name that there is already costs
    nothing but itself: it is an offer with a ``problem``.

    Args:
        title: the text for a name: ``kind {}``.
        names: gives the names of an object; the first is its key, the others are aliases.
        adopted: returns the object to keep for a plug-in's. Its error is the problem."""

    def __init__(
        self, title: str, ours: Iterable[T], group: str, of: tuple[type, ...], *,
        names: Callable[[T], Iterable[str]] = _names, adopted: Callable[[T], T] = _as_it_is,
    ) -> None:
        self._title, self._of, self._names = title, of, names
        self._adopted = adopted
        self._ours = tuple(ours)
        self._found: dict[str, T] = {}
        self.aliases: dict[str, str] = {}
        """Other name -> the key that it stands for."""
        self._add(self._ours)
        points = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
        self.offers: tuple[Offer[T], ...] = tuple(map(self._read, points))

    def __getitem__(self, name: str) -> T:
        return self._found[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._found)

    def __len__(self) -> int:
        return len(self._found)

    @property
    def broken(self) -> dict[str, str]:
        """Return which entry points cannot be used, by name, and why; none whose name is taken."""
        return {one.name: f"{one.origin}: {one.problem}" for one in self.offers
                if one.problem and one.name not in self and one.name not in self.aliases}

    def is_ours(self, one: T) -> bool:
        """Return whether an object is of this package, not a plug-in's."""
        return any(one is own for own in self._ours)

    def _read(self, point: PartPoint | EntryPoint) -> Offer[T]:
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            value = point.load()
            values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            for part in values:
                if not isinstance(part, self._of):
                    wanted = " or ".join(each.__name__ for each in self._of)
                    raise PluginError(f"offers a {type(part).__name__}, no {wanted}")
            values = tuple(map(self._adopted, values))
            self._add(values)
            return Offer(point.name, origin, values)
        except PluginError as error:
            return Offer(point.name, origin, problem=str(error))
        except (Exception, SystemExit) as error:  # an import can raise anything
            return Offer(point.name, origin, problem=f"{type(error).__name__}: {error}")

    def _add(self, values: Iterable[T]) -> None:
        """Keep the objects. Raises PluginError, and keeps none, if a name cannot be used."""
        parts, aliases = dict(self._found), dict(self.aliases)
        for part in values:
            key, *others = names = tuple(self._names(part))
            for name in names:
                if not isinstance(name, str) or not name:
                    raise PluginError(f"{name!r} is no name")
                if name in parts or name in aliases:
                    raise PluginError(f"there is a {self._title.format(name)} already")
            parts[key] = part
            aliases |= dict.fromkeys(others, key)
        self._found, self.aliases = dict(sorted(parts.items(), key=_order)), aliases


class Deferred:
    """An offer of which only the name is known: its object, at ``path``, is loaded when needed."""

    __slots__ = ()
    group: ClassVar[str]
    title: ClassVar[str]
    name: str
    path: str

    def load(self) -> Any:
        """Return the object. Raises PluginError if another package is at fault."""
        try:
            return load(self.path)
        except (Exception, SystemExit) as error:
            if in_this_package(self.path):
                raise
            raise PluginError(f"{self.title.format(self.name)}: {self.path} cannot be loaded: "
                              f"{type(error).__name__}: {error}") from error


@dataclass(frozen=True, slots=True)
class CommandSpec(Deferred):
    """A command of the command line: a function as typer takes it, its docstring the help.

    ``heading`` is the one of `hpcbench --help` below which it stands; without one it is no word of
    the command line, but what an option of another command needs. ``is_job``: it is started on all
    ranks, which meet in MPI; ``posts``: they wait for messages to rank 0, not for a collective.
    ``is_first``: it stands there above ours."""

    group: ClassVar[str] = "hpcbench.commands"
    title: ClassVar[str] = "command {}"
    name: str
    path: str
    heading: str = "Other tools"
    is_job: bool = False
    posts: bool = False
    is_first: bool = False


@dataclass(frozen=True, slots=True)
class DialectSpec(Deferred):
    """Sweep files of another tool: a `config.section.Dialect`. ``keys``: a file without any of
    these is none of them."""

    group: ClassVar[str] = "hpcbench.dialects"
    title: ClassVar[str] = "dialect {}"
    name: str
    path: str
    keys: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicSpec(Deferred):
    """A topic of ``advise``: an `answers.answer.Topic`.

    ``is_recorded``: it is about a job's recorded calls. ``in_summary``, of our parts: its answers
    stand, in short, in the summary and at the end of a run and of ``show``."""

    group: ClassVar[str] = "hpcbench.topics"
    title: ClassVar[str] = "topic {}"
    name: str
    path: str
    is_recorded: bool = False
    in_summary: bool = False


D = TypeVar("D", bound=Deferred)


@cache
def offered(of: type[D]) -> Registry[D]:
    """Return what parts and packages offer of a class of `Deferred`; nothing of it is loaded."""
    return Registry(of.title, (), of.group, (of,))

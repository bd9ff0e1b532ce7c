"""Objects by name: those of this package, and those that other packages offer by entry points.

There is one registry for each thing that a plug-in can add (docs/plugins.md).
"""

from __future__ import annotations

import importlib.metadata
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from importlib.metadata import EntryPoint, EntryPoints
from typing import Any, Generic, TypeVar

from hpcbench.errors import PluginError

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Offer(Generic[T]):
    """One entry point: its name, its distribution and version, and the objects that it names.

    ``problem``: why none of them is used; it is empty where all are.
    """

    name: str
    origin: str
    values: tuple[T, ...] = ()
    problem: str = ""


def entry_points(group: str) -> EntryPoints:
    """Return the entry points of a group: those of all places are read once, which takes 4 ms."""
    found: EntryPoints = _every_entry_point(tuple(sys.path)).select(group=group)
    return found


@lru_cache(maxsize=1)
def _every_entry_point(places: tuple[str, ...]) -> Any:
    return importlib.metadata.entry_points()


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
        adopted: returns the object to keep for a plug-in's. Its error is the problem.
    """

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

    def _read(self, point: EntryPoint) -> Offer[T]:
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            value = point.load()
            values = tuple(value) if isinstance(value, (list, tuple)) else (value,)
            for one in values:
                if not isinstance(one, self._of):
                    wanted = " or ".join(each.__name__ for each in self._of)
                    raise PluginError(f"offers a {type(one).__name__}, no {wanted}")
            values = tuple(map(self._adopted, values))
            self._add(values)
            return Offer(point.name, origin, values)
        except PluginError as error:
            return Offer(point.name, origin, problem=str(error))
        except (Exception, SystemExit) as error:  # an import can raise anything
            return Offer(point.name, origin, problem=f"{type(error).__name__}: {error}")

    def _add(self, values: Iterable[T]) -> None:
        """Keep the objects. Raises PluginError, and keeps none, if a name cannot be used."""
        found, aliases = dict(self._found), dict(self.aliases)
        for one in values:
            key, *others = names = tuple(self._names(one))
            for name in names:
                if not isinstance(name, str) or not name:
                    raise PluginError(f"{name!r} is no name")
                if name in found or name in aliases:
                    raise PluginError(f"there is a {self._title.format(name)} already")
            found[key] = one
            aliases |= dict.fromkeys(others, key)
        self._found, self.aliases = dict(sorted(found.items(), key=_order)), aliases

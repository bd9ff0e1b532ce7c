"""What the packages that are installed beside hpcbench offer, by entry points (docs/plugins.md)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any


@dataclass(frozen=True, slots=True)
class Offer:
    """One entry point: its name, its distribution and version, and the object that it names.

    ``problem`` says why the object cannot be imported; it is empty where it can.
    """

    name: str
    origin: str
    value: Any
    problem: str = ""


def offers(group: str) -> Iterator[Offer]:
    """Yield what each entry point of a group names, sorted by name. A broken one raises nothing."""
    points = sorted(entry_points(group=group), key=lambda point: (point.name, point.value))
    for point in points:
        origin = f"{point.dist.name} {point.dist.version}" if point.dist else point.value
        try:
            yield Offer(point.name, origin, point.load())
        except (Exception, SystemExit) as error:  # an import can raise anything
            yield Offer(point.name, origin, None, f"{type(error).__name__}: {error}")

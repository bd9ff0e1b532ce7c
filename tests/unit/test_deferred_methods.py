"""Records whose methods are compiled when first called behave as the standard library's."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable
from dataclasses import field
from typing import Any, ClassVar

import pytest
from pydantic import TypeAdapter

from hpcbench import records
from hpcbench.records import dataclass


@dataclass(frozen=True, slots=True)
class Point:
    """A place."""

    x: int
    names: list[str] = field(default_factory=list, compare=False)
    y: int = field(default=2, kw_only=True)
    origin: ClassVar[int] = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "x", abs(self.x))


@dataclass(frozen=True, slots=True)
class Named(Point):
    """A record with a base."""

    name: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class Theirs(Point):
    """A record of another package."""

    size: int = 1


def test_values_are_kept_compared_and_shown() -> None:
    point = Point(-1, y=3)
    assert (point.x, point.names, point.y) == (1, [], 3)
    assert point == Point(1, ["a"], y=3) != Point(1)
    assert {point: 1}[Point(1, y=3)] == 1
    assert repr(point) == "Point(x=1, names=[], y=3)"
    assert Point(1) != Named(1) and Named(1, name="a").name == "a"
    assert Theirs(1, size=4) == Theirs(-1, size=4)
    with pytest.raises(TypeError, match=r"Point\.__init__\(\) missing 1 required"):
        Point()  # type: ignore[call-arg]


@pytest.mark.parametrize("copied", [
    copy.copy, copy.deepcopy, dataclasses.replace, lambda one: pickle.loads(pickle.dumps(one)),
    lambda one: TypeAdapter(Point).validate_python(TypeAdapter(Point).dump_python(one))])
def test_a_copy_is_equal(copied: Callable[[Point], Point]) -> None:
    assert copied(Point(5, ["b"])) == Point(5, ["b"])
    assert copied(Point(5, ["b"])).names == ["b"]


@pytest.mark.parametrize("name", ["x", "new"])
def test_nothing_can_be_set_or_deleted(name: str) -> None:
    for change in (lambda one: setattr(one, name, 1), lambda one: delattr(one, name)):
        with pytest.raises(dataclasses.FrozenInstanceError):
            change(Point(1))


def test_only_what_is_called_is_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled: list[tuple[str, str]] = []
    compile_one = records._compiled

    def noted(record: Any, name: str) -> Any:
        compiled.append((record.__name__, name))
        return compile_one(record, name)

    monkeypatch.setattr(records, "_compiled", noted)

    @dataclass(frozen=True, slots=True)
    class Fresh:
        x: int

    assert not compiled
    assert Fresh(1) == Fresh(1)
    assert compiled == [("Fresh", "__init__"), ("Fresh", "__eq__")]

"""`dataclass` for records: their methods are compiled when they are first called.

The standard library compiles six functions as it defines a frozen dataclass, which takes 0.4 ms;
a command imports up to 400 such classes and makes objects of few. Here this waits for the first
object. What is made while something is timed has the standard library's own."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dataclasses import dataclass as dataclass
else:
    def dataclass(record: type | None = None, /, **options: bool) -> Any:
        """Return the class as ``dataclasses.dataclass`` does, with its methods still to compile.

        A class with other options than frozen and slots, a base that is a dataclass, or a method
        of its own in place of one of these is defined there and then."""
        if record is None:
            return partial(dataclass, **options)
        is_plain = options == _PLAIN and not vars(record).keys() & {*_METHODS, *_OF_FROZEN}
        if not is_plain or any(map(dataclasses.is_dataclass, record.__mro__)):
            return dataclasses.dataclass(record, **options)
        return _deferred(record)

_PLAIN = {"frozen": True, "slots": True}
_METHODS = ("__init__", "__repr__", "__eq__", "__hash__")


def _refuse(record: object, name: str, value: object = None) -> None:
    raise dataclasses.FrozenInstanceError(f"cannot assign to or delete field {name!r}")


def _state(record: Any) -> list[Any]:
    return [getattr(record, field.name) for field in dataclasses.fields(record)]


def _restore(record: Any, state: list[Any]) -> None:
    for field, value in zip(dataclasses.fields(record), state, strict=True):
        object.__setattr__(record, field.name, value)


_OF_FROZEN: dict[str, Callable[..., Any]] = {
    "__setattr__": _refuse, "__delattr__": _refuse, "__getstate__": _state,
    "__setstate__": _restore}
"""Methods that are the same for all."""


@dataclasses.dataclass(**_PLAIN)
class _Empty:
    """Has the parameters that the standard library notes of such a class."""


def _deferred(record: Any) -> Any:
    record.__doc__ = record.__doc__ or record.__name__  # else a signature is worked out for it
    record = dataclasses.dataclass(init=False, repr=False, eq=False, slots=True)(record)
    record.__dataclass_params__ = vars(_Empty)["__dataclass_params__"]
    for name, method in _OF_FROZEN.items():
        setattr(record, name, method)
    for name in _METHODS:
        setattr(record, name, _compiling(record, name))
    return record


def _compiling(record: Any, name: str) -> Callable[..., Any]:
    """Return a method that compiles the one of this name, which takes its place, and calls it."""
    def method(self: Any, *values: Any, **named: Any) -> Any:
        return _compiled(record, name)(self, *values, **named)

    return method


def _compiled(record: Any, name: str) -> Any:
    """Have the standard library define a class with the same fields, and take a method of it."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    more = {"__post_init__": None} if hasattr(record, "__post_init__") else {}
    twin: Any = type(record.__name__, (), {
        **fields, **more, "__annotations__": {name: one.type for name, one in fields.items()},
        "__module__": record.__module__, "__qualname__": record.__qualname__,
        "__doc__": record.__doc__})  # else a signature is worked out for it
    twin = dataclasses.dataclass(
        twin, init=name == "__init__", repr=name == "__repr__", eq=name in ("__eq__", "__hash__"),
        frozen=True)
    setattr(record, name, vars(twin)[name])
    return vars(twin)[name]

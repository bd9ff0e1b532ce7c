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
    """Put a method in the place of the one that compiles it, and return it."""
    setattr(record, name, _init(record) if name == "__init__" else _of_twin(record, name))
    return vars(record)[name]


def _init(record: Any) -> Callable[..., None]:
    """Return what fills the fields. The standard library compiles two methods more with it."""
    missing = dataclasses.MISSING
    known: dict[str, Any] = {"_set": object.__setattr__, "_missing": missing}
    parameters: dict[bool, list[str]] = {False: ["self"], True: []}
    lines = ["pass"]
    for at, field in enumerate(dataclasses.fields(record)):
        name = given = value = field.name
        if field.default is not missing:
            known[f"_{at}"] = field.default
            given = f"{name}=_{at}"
        elif field.default_factory is not missing:
            known[f"_{at}"] = field.default_factory
            given = f"{name}=_missing"
            value = f"_{at}() if {name} is _missing else {name}"
        parameters[bool(field.kw_only)].append(given)
        lines.append(f"_set(self, {name!r}, {value})")
    if hasattr(record, "__post_init__"):
        lines.append("self.__post_init__()")
    behind, named = parameters.values()
    head = ", ".join([*behind, *(["*"] if named else []), *named])
    exec(f"def __init__({head}):\n  " + "\n  ".join(lines), known)
    made: Callable[..., None] = known["__init__"]
    made.__qualname__ = f"{record.__qualname__}.__init__"  # of the error that a value is missing
    return made


def _of_twin(record: Any, name: str) -> Any:
    """Have the standard library define a class with the same fields; return a method of it."""
    fields = {field.name: field for field in dataclasses.fields(record)}
    twin: Any = type(record.__name__, (), {
        **fields, "__annotations__": {name: one.type for name, one in fields.items()},
        "__module__": record.__module__, "__qualname__": record.__qualname__,
        "__doc__": record.__doc__})  # else a signature is worked out for it
    twin = dataclasses.dataclass(
        twin, init=False, repr=name == "__repr__", eq=name == "__eq__",
        unsafe_hash=name == "__hash__")
    return vars(twin)[name]

"""Dataclasses out of JSON, which can be anything: checked against the types they declare.

A checksum only shows that a text was written so. Types have to be importable where their class is;
what pydantic cannot check, such as arrays, is taken as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import cache
from typing import Annotated, Any, TypeVar, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from hpcbench.texts import from_json, holds_halves, to_json

Read = TypeVar("Read")
_STRICT = ConfigDict(strict=True, arbitrary_types_allowed=True)
_INT64 = Annotated[int, Field(ge=-2**63, lt=2**63)]


def from_text(kind: type[Read], text: str | bytes) -> Read:
    """Return what a JSON text holds; keys that it should not have are ignored.

    Raises ValueError that names the first field that does not fit.
    """
    words = text.decode("utf-8", "surrogatepass") if isinstance(text, bytes) else text
    if holds_halves(words):  # pydantic refuses what earlier versions wrote
        text = to_json(from_json(words))
    try:
        read: Read = adapter_of(kind).validate_json(text, strict=True)
    except ValidationError as error:
        raise ValueError(_first(error)) from error
    return read


def from_values(kind: type[Read], values: Any) -> Read:
    """Return what JSON values hold, as `from_text` does."""
    return from_text(kind, to_json(values))


def to_values(item: Any) -> dict[str, Any]:
    """Return a dataclass as `dataclasses.asdict` does, in a tenth of the time."""
    values: dict[str, Any] = adapter_of(type(item)).dump_python(item, warnings=False)
    return values


def check_types(item: Any, without: Collection[str] = ()) -> None:
    """Raise ValueError where a field of a dataclass is not of its type, but those ``without``.

    Fields that are dataclasses are looked into.
    """
    checkers = _checkers(
        type(item), frozenset(without))  # type: ignore[arg-type]  # a class is hashable
    for name, checker in checkers.items():
        value = getattr(item, name)
        try:
            checker.validate_python(value)
        except ValidationError as error:
            raise ValueError(f"{name}: {_first(error)}") from error
        if is_dataclass(value):
            check_types(value)


def adapter_of(kind: type[Any]) -> TypeAdapter[Any]:
    """Return what reads and stores objects of a class; it is made once."""
    return _adapter(kind)  # type: ignore[arg-type]  # a class is hashable


@cache
def _adapter(kind: type[Any]) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@cache
def _checkers(kind: type[Any], without: frozenset[str]) -> Mapping[str, TypeAdapter[Any]]:
    """Return what checks each other field; whole numbers have to fit into an HDF5 column.

    Nothing checks a class of a plug-in whose types cannot be resolved.
    """
    try:
        hints = get_type_hints(kind)
    except Exception:
        if kind.__module__.partition(".")[0] == "hpcbench":
            raise
        return {}  # a plug-in need not be able to resolve its types at run time
    types = {item.name: hints[item.name] for item in fields(kind) if item.name not in without}
    return {name: TypeAdapter(_INT64 if one is int else one,
                              config=None if is_dataclass(one) else _STRICT)
            for name, one in types.items()}


def _first(error: ValidationError) -> str:
    first = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(map(str, first["loc"]))
    return f"{where}: {first['msg']}" if where else str(first["msg"])

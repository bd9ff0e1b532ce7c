"""Values of declared types as plain JSON values and back, for processes that talk to each other.

pydantic, which reads what people write, takes 0.03 s to build the models of one process's messages.
A type is read strictly, but that a whole number does for a float."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Generic,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

Value = TypeVar("Value")


class Codec(NamedTuple):
    """How values of a type are read and written; in ``Annotated``, those of a type of its own."""

    read: Callable[[Any], Any]
    write: Callable[[Any], Any]


class Plain(Generic[Value]):
    """Reads and writes values of a type: a dataclass, a union of them, or what `_codec` knows."""

    def __init__(self, kind: Any) -> None:
        self._kind = kind

    def write(self, value: Value) -> Any:
        return _codec(self._kind).write(value)

    def read(self, plain: Any) -> Value:
        """Return the value of what `write` returned. Raises ValueError for anything else."""
        value: Value = _codec(self._kind).read(plain)
        return value


@cache
def _codec(kind: Any) -> Codec:
    origin, parts = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return next(part for part in parts if isinstance(part, Codec))
    if origin is Literal:
        return Codec(lambda plain: _checked(plain, plain in parts, kind), _as_it_is)
    if origin in (Union, UnionType):
        return _union(kind, parts)
    if is_dataclass(kind):
        return _record(kind)
    if origin is Mapping:
        key, item = map(_codec, parts)
        return Codec(
            lambda plain: {key.read(name): item.read(one)
                           for name, one in _checked(plain, isinstance(plain, dict), kind).items()},
            lambda value: {name: item.write(one) for name, one in value.items()})
    if hasattr(kind, "_fields") or origin is tuple and parts[-1] is not Ellipsis:
        places = [*map(_codec, parts or get_type_hints(kind).values())]
        make = (lambda values: kind(*values)) if origin is None else tuple
        return Codec(
            lambda plain: make([place.read(one) for place, one in zip(
                places, _checked(plain, isinstance(plain, (list, tuple)), kind), strict=True)]),
            lambda value: [place.write(one) for place, one in zip(places, value, strict=True)])
    if origin in (tuple, list, frozenset):
        item = _codec(parts[0])
        return Codec(
            lambda plain: origin(map(
                item.read, _checked(plain, isinstance(plain, (list, tuple)), kind))),
            lambda value: [*map(item.write, value)])
    return _SIMPLE.get(kind) or (Codec(kind, lambda value: value.value) if issubclass(kind, Enum)
                                 else Codec(_of_type(kind), _as_it_is))


def _union(kind: Any, parts: tuple[Any, ...]) -> Codec:
    """Return the codec of a union: records, which differ by a ``Literal``, and simple values."""
    codecs = {part: _codec(part) for part in parts}
    usual = next((codec for part, codec in codecs.items() if part is not NoneType), None)

    def read(plain: Any) -> Any:
        for part, codec in codecs.items():
            try:
                return codec.read(plain)
            except ValueError:
                if _is_meant(part, plain):
                    raise
        raise ValueError(f"{kind} expected, got {plain!r:.100}")

    def write(value: Any) -> Any:
        return (codecs.get(type(value)) or usual or codecs[NoneType]).write(value)

    return Codec(read, write)


def _is_meant(part: Any, plain: Any) -> bool:
    """Return whether a value has the ``Literal`` fields of a record."""
    names = {name: get_args(hint) for name, hint in get_type_hints(part).items()
             if get_origin(hint) is Literal} if is_dataclass(part) else {}
    return bool(names) and isinstance(plain, dict) and all(
        plain.get(name) in values for name, values in names.items())


def _record(kind: Any) -> Codec:
    hints = get_type_hints(kind, include_extras=True)
    codecs = {field.name: _codec(hints[field.name]) for field in fields(kind)}

    def read(plain: Any) -> Any:
        _checked(plain, isinstance(plain, dict), kind)
        values = {}
        for name, codec in codecs.items():
            try:
                values.update({name: codec.read(plain[name])} if name in plain else {})
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error
        try:
            return kind(**values)
        except TypeError as error:  # a field is missing
            raise ValueError(str(error)) from error

    return Codec(read, lambda value: {
        name: codec.write(getattr(value, name)) for name, codec in codecs.items()})


def _checked(plain: Any, is_right: bool, kind: Any) -> Any:
    if not is_right:
        raise ValueError(f"{kind} expected, got {plain!r:.100}")
    return plain


def _of_type(kind: Any) -> Callable[[Any], Any]:
    return lambda plain: _checked(plain, type(plain) is kind, kind)


def _float(plain: Any) -> float:
    return float(_checked(plain, type(plain) in (int, float), float))


def _int64(plain: Any) -> int:
    whole: int = _checked(plain, type(plain) is int and -2**63 <= plain < 2**63, "int64")
    return whole


def _as_it_is(value: Any) -> Any:
    return value


def _free(value: Any) -> Any:
    """Return any value as JSON takes it, as far as it does."""
    if is_dataclass(value):
        return {field.name: _free(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {name: _free(one) for name, one in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [*map(_free, value)]
    return str(value) if isinstance(value, Path) else value


Int64 = Annotated[int, Codec(_int64, _as_it_is)]
_TEXT = _of_type(str)
_SIMPLE = {Any: Codec(_as_it_is, _free), float: Codec(_float, float),
           Path: Codec(lambda plain: Path(_TEXT(plain)), str)}

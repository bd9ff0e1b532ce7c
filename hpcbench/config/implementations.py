"""The keys ``implementations`` of primitives and ``strategies`` of trainings: names with options.

They are written as one name, a list of names, or a mapping of names to options. In a mapping a name
may also have a list of several sets of options, as in DDLB's files. Each option is a value or a
list, which is an axis. The plan checks names and options, because plug-ins may add some.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from hpcbench.config.axes import Checked, JsonSchema, as_tuple, values_of
from hpcbench.config.names import quote

OptionAxes = dict[str, tuple[str | int | bool, ...]]


def _checked(what: str) -> Checked:
    """Return the annotation of named sets of options; ``what`` is what the names are of."""
    def check(value: Any) -> dict[str, tuple[OptionAxes, ...]]:
        if isinstance(value, Mapping):
            given = {_name(name, what): _sets(name, sets) for name, sets in value.items()}
        else:
            given = {_name(name, what): ({},) for name in as_tuple(value)}
        if not given:
            raise ValueError(f"no {what} is named; give at least one")
        return given

    return Checked(check, _schema)


def _name(value: Any, what: str) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= 100:
        article = "an" if what[0] in "aeiou" else "a"
        raise ValueError(f"{quote(value)} is not the name of {article} {what}")
    return value


def _sets(name: str, options: Any) -> tuple[OptionAxes, ...]:
    sets = as_tuple({} if options is None else options)
    if not sets:
        raise ValueError(f"{name}: the list is empty; give at least one mapping of options")
    return tuple(_axes(name, one) for one in sets)


def _axes(name: str, options: Any) -> OptionAxes:
    if not isinstance(options, Mapping):
        raise ValueError(f'{name}: {quote(options)} is not a mapping of options; write '
                         '{"chunks": [2, 4]}')
    return {str(option): _values(f"{name}.{option}", values) for option, values in options.items()}


def _values(where: str, values: Any) -> tuple[str | int | bool, ...]:
    items = values_of(where, values)
    for value in items:
        if type(value) not in (str, int, bool):
            raise ValueError(f"{where}: {quote(value)} is not text, a whole number, true or false")
    return items


def _schema() -> JsonSchema:
    value: JsonSchema = {"type": ["string", "integer", "boolean"]}
    axes: JsonSchema = {"type": "object", "additionalProperties": {
        "anyOf": [value, {"type": "array", "minItems": 1, "items": value}]}}
    sets: JsonSchema = {"anyOf": [axes, {"type": "array", "minItems": 1, "items": axes}]}
    return {"anyOf": [{"type": "string"}, {"type": "array", "minItems": 1,
                                           "items": {"type": "string"}},
                      {"type": "object", "minProperties": 1, "additionalProperties": sets}]}


Implementations = Annotated[dict[str, tuple[OptionAxes, ...]], _checked("implementation")]
"""Implementation -> its sets of options, each option with all its values."""
Strategies = Annotated[dict[str, tuple[OptionAxes, ...]], _checked("strategy")]
"""Training strategy -> its sets of options, each option with all its values."""

"""Whether a plan can use what a plug-in offers, and what its functions return.

Plug-ins are other people's code, and Python checks no types: an error must be reported
where it enters, because later it would end the plan of everything else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from types import MappingProxyType
from typing import NamedTuple

from hpcbench.config.names import BACKENDS, quote, unknown_name
from hpcbench.kinds.primitive.plan.spec import LAYERS, ImplementationSpec, PrimitiveSpec, Work
from hpcbench.operations.collectives import collectives
from hpcbench.plan.options import Values

AXES_OF_POINTS = ("backend", "order")
"""Keys of a set of options that are axes of every implementation; no option has such a name."""
_DEVICES = ("cpu", "cuda", "mps")
_LIBRARIES = tuple(dict.fromkeys(name.partition("/")[0] for name in BACKENDS))


class _Wanted(NamedTuple):
    """What a field must be, in words, and whether a value is."""

    words: str
    is_met: Callable[[object], bool]


def unusable(spec: object) -> str | None:
    """Return why what a plug-in offers cannot be used, or None."""
    if not isinstance(spec, (PrimitiveSpec, ImplementationSpec)):
        return f"offers a {type(spec).__name__}, no PrimitiveSpec or ImplementationSpec"
    return next((f"{spec.name}: {problem}" for problem in _problems(spec)), None)


def check_work(work: object) -> None:
    """Raise TypeError or ValueError if this is no `Work` of known collectives and whole numbers."""
    if not isinstance(work, Work):
        raise TypeError(f"work returned {type(work).__name__}, no Work")
    counts = [(name, getattr(work, name)) for name in ("flops", "total_flops")]
    for traffic in work.traffic:
        if traffic.collective not in collectives():
            raise ValueError(unknown_name(traffic.collective, collectives()))
        counts += [(name, getattr(traffic, name)) for name in ("size_bytes", "wire_bytes")]
    for name, count in counts:
        if type(count) is not int or count < 0:
            raise TypeError(f"{name} is {count!r}, no whole number from 0")


def check_reason(reason: object) -> None:
    """Raise TypeError if a function ``unfit`` must not return this."""
    if reason is not None and not isinstance(reason, str):
        raise TypeError(f"unfit returned {reason!r}, neither text nor None")


def check_variables(variables: object) -> None:
    """Raise TypeError if these are no environment variables."""
    if not isinstance(variables, Mapping) or not all(
            isinstance(text, str) for item in variables.items() for text in item):
        raise TypeError(f"env returned {variables!r}, no mapping of text to text")


def _problems(spec: PrimitiveSpec | ImplementationSpec) -> Iterator[str]:
    wanted = _OF_PRIMITIVES if isinstance(spec, PrimitiveSpec) else _OF_IMPLEMENTATIONS
    for name in (field.name for field in fields(spec)):
        if not wanted[name].is_met(getattr(spec, name)):
            yield f"{name} must be {wanted[name].words}"
    paths = (("inputs", spec.inputs),) if isinstance(spec, PrimitiveSpec) else (
        ("runners", path) for path in spec.runners.values())
    yield from (f"{name}: {quote(path)} is not written as module:class" for name, path in paths
                if not isinstance(path, str) or not all(path.partition(":")))
    yield from (f"an option cannot be named {name}: that is an axis of every implementation"
                for name in AXES_OF_POINTS if name in spec.options)


def _is_text(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_option(value: object) -> bool:
    return type(value) in (str, int, bool)


def _is_anything(value: object) -> bool:
    return True


def _is_values(value: object) -> bool:
    return (isinstance(value, Values) and isinstance(value.allowed, tuple)
            and type(value.least) is int and all(map(_is_option, value.allowed))
            and value.allows(value.default))


def _mapping(of: Callable[[object], bool]) -> Callable[[object], bool]:
    """Return whether a value is a mapping of text to what ``of`` accepts."""
    return lambda value: isinstance(value, Mapping) and all(
        _is_text(key) and of(item) for key, item in value.items())


def _tuple(of: Callable[[object], bool], least: int = 0) -> Callable[[object], bool]:
    return lambda value: isinstance(value, tuple) and len(value) >= least and all(map(of, value))


def _one_of(names: tuple[str, ...]) -> Callable[[object], bool]:
    return lambda value: isinstance(value, str) and value in names


def _are_pairs(value: object) -> bool:
    return value is None or isinstance(value, frozenset) and all(
        isinstance(pair, tuple) and len(pair) == 2 and all(map(_is_text, pair)) for pair in value)


def _are_calls(value: object) -> bool:
    return value is None or _tuple(_one_of(tuple(collectives())))(value)


def _are_libraries(value: object) -> bool:
    return value is None or _tuple(_one_of(_LIBRARIES), least=1)(value)


_TEXT = _Wanted("text, not empty", _is_text)
_FUNCTION = _Wanted("a function", callable)
_SWITCH = _Wanted("True or False", lambda value: isinstance(value, bool))
_OPTIONS = _Wanted("a mapping of names to Values whose default is one of them",
                   _mapping(_is_values))
_COMMON = {"name": _TEXT, "meaning": _TEXT, "options": _OPTIONS, "unfit": _FUNCTION}
_OF_PRIMITIVES: Mapping[str, _Wanted] = MappingProxyType({
    **_COMMON, "work": _FUNCTION, "unsharded": _FUNCTION, "divides_layer": _SWITCH,
    "orders": _Wanted("a tuple of text, not empty", _tuple(_is_text, least=1)),
    "inputs": _Wanted("module:class", _is_anything),  # checked by a rule of its own
    "layers": _Wanted(f"a tuple of {', '.join(LAYERS)}", _tuple(_one_of(LAYERS))),
    "decided": _Wanted("a mapping of orders to options", _mapping(_mapping(_is_option))),
})
_OF_IMPLEMENTATIONS: Mapping[str, _Wanted] = MappingProxyType({
    **_COMMON, "compiles": _SWITCH, "connects": _SWITCH, "overlaps": _SWITCH,
    "reads_peers": _SWITCH,
    "uncaptured": _Wanted("text", lambda value: isinstance(value, str)),
    "runners": _Wanted("a mapping of primitives to module:class", _mapping(_is_anything)),
    "absent": _Wanted("a mapping of primitives to text", _mapping(_is_text)),
    "part": _Wanted("both, compute or communicate", _one_of(("both", "compute", "communicate"))),
    "orders": _Wanted("None or a frozenset of (primitive, order)", _are_pairs),
    "calls": _Wanted(f"None or a tuple of {', '.join(collectives())}", _are_calls),
    "devices": _Wanted(f"a tuple of {', '.join(_DEVICES)}", _tuple(_one_of(_DEVICES), least=1)),
    "backends": _Wanted(f"None or a tuple of {', '.join(_LIBRARIES)}", _are_libraries),
    "modules": _Wanted("a tuple of text", _tuple(_is_text)), "env": _FUNCTION,
    "least_multiprocessors": _FUNCTION,
    "least_capability": _Wanted(
        "(major, minor), or () for any", lambda value: value == () or isinstance(
            value, tuple) and len(value) == 2 and all(type(part) is int for part in value)),
})

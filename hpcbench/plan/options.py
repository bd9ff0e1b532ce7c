"""Options of implementations and strategies: what one must be, and how they are kept."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from hpcbench.config.names import quote, unknown_name

Option = str | int | bool
NO_OPTIONS: Mapping[str, Values] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Values:
    """What an option may be: one of ``allowed``, or, if there are none, a number from ``least``.

    ``default`` is used where the sweep sets no value.
    """

    default: Option
    allowed: tuple[Option, ...] = ()
    least: int = 1

    def allows(self, value: object) -> bool:
        """Return whether the option may be this; true is not the number 1."""
        if self.allowed:
            return any(value == one and type(value) is type(one) for one in self.allowed)
        return type(value) is int and value >= self.least


def described(options: Mapping[str, Values]) -> dict[str, dict[str, Any]]:
    """Return options as JSON values: the default, and what is allowed or the least number."""
    return {name: {"default": values.default,
                   **({"allowed": list(values.allowed)} if values.allowed
                      else {"least": values.least})} for name, values in options.items()}


def wanted(value: Option, several: Sequence[Values]) -> str:
    """Return what an option of several of one name must be where some do not allow ``value``."""
    against = [values for values in several if not values.allows(value)]
    elsewhere = ("" if len(against) == len(several) else
                 "; not all that have it take it: give it in implementations, to those that do")
    allowed = dict.fromkeys(item for values in against for item in values.allowed)
    if allowed:
        return unknown_name(value, [str(item) for item in allowed]) + elsewhere
    least = max(values.least for values in against)
    return f"{quote(value)} must be a whole number from {least}{elsewhere}"


def in_order(options: Mapping[str, Option]) -> tuple[tuple[str, Option], ...]:
    """Return (name, value) pairs sorted by name, as workloads keep them."""
    return tuple((name, options[name]) for name in sorted(options))

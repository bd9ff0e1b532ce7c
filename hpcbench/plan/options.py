"""Options of implementations and strategies: does a value suit one, and what does else."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from hpcbench.config.names import quote, unknown_name
from hpcbench.plan.case import Option
from hpcbench.plan.primitives.spec import Values


def fits(value: Option, values: Values) -> bool:
    """Return whether an option may have the value: true is not 1, and neither is "1"."""
    if values.allowed:
        return any(value == allowed and type(value) is type(allowed) for allowed in values.allowed)
    return type(value) is int and value >= values.least


def wanted(value: Option, several: Sequence[Values]) -> str:
    """Return the message for a value that suits none of several options of one name."""
    allowed = dict.fromkeys(item for values in several for item in values.allowed)
    if allowed:
        return unknown_name(value, [str(item) for item in allowed])
    return f"{quote(value)} must be a whole number from {min(item.least for item in several)}"


def in_order(options: Mapping[str, Option]) -> tuple[tuple[str, Option], ...]:
    """Return (name, value) pairs sorted by name, as workloads keep them."""
    return tuple((name, options[name]) for name in sorted(options))

"""What a workload asks of a backend: one call of a collective, without its size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

_REDUCTIONS = ("all_reduce", "reduce_scatter", "reduce")


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with its dtype, its reduction and how it divides the data.

    ``op`` is None where the collective reduces nothing. ``split`` is a value of the axis of that
    name (docs/method.md).
    """

    collective: str
    dtype: str
    op: str | None
    split: str = "even"


def calls_of(names: Iterable[str], dtype: str, split: str = "even") -> tuple[Call, ...]:
    """Return the calls of these collectives; what reduces sums, and ``split`` is all_to_all's."""
    return tuple(Call(name, dtype, "sum" if name in _REDUCTIONS else None,
                      split if name == "all_to_all" else "even") for name in names)

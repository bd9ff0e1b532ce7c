"""What a workload calls on a backend: one collective, without its size."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hpcbench.operations.collectives import collective_spec


@dataclass(frozen=True, slots=True)
class Call:
    """A collective with its dtype, its reduction and how it divides the data.

    ``op`` is None where the collective reduces nothing. ``split`` is a value of the axis of that
    name (docs/method.md). ``in_place`` is None where the workload does not choose the form.
    ``is_case``: the case is this one call, which nothing else makes.
    """

    collective: str
    dtype: str
    op: str | None
    split: str = "even"
    in_place: bool | None = None
    is_case: bool = False


def calls_of(names: Iterable[str], dtype: str, split: str = "even") -> tuple[Call, ...]:
    """Return the calls of these collectives; what reduces sums.

    ``split`` is that of the pairwise ones (all_to_all); all others have equal parts.
    """
    specs = [collective_spec(name) for name in names]
    return tuple(Call(spec.name, dtype, "sum" if spec.has_op else None,
                      split if spec.pairwise else "even") for spec in specs)

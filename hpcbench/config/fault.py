"""Faults that a sweep file asks for; apart, since workers need them and no other section."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any

from pydantic import Field

from hpcbench.config.section import FaultKind, Positive, Section, Text, key


class Fault(Section):
    """An error made on purpose, to test how a run deals with it. For testing only."""

    case: Text = key("*", "Shell pattern on a case's label or id.")
    rank: Annotated[int, Field(ge=0)] = Field(description="The rank it happens on.")
    kind: FaultKind = Field(description="What happens.")
    iteration: Annotated[int, Field(ge=0)] | None = key(
        None, "When, counted from the first warm-up. Default: slow every timed iteration, the "
        "others 0.")
    seconds: Positive = key(
        0.1, "How much later a slow rank starts; slow_samples: how much longer each sample of a "
        "training takes from then on.")


def fault_texts(stored: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """Return what each fault of a ``fault`` section does, in words; also of an older version's."""
    return tuple(dict.fromkeys(map(_text, stored)))


def _text(fault: Mapping[str, Any]) -> str:
    kind, at = fault.get("kind"), fault.get("iteration")
    lasting = f" by {fault['seconds']:g} s" if "seconds" in fault and kind in (
        "slow", "slow_samples") else ""
    when = "each timed iteration" if kind == "slow" and at is None else f"iteration {at or 0}"
    since = "from" if kind == "slow_samples" else "in"
    return f"{kind}{lasting} on rank {fault.get('rank')} {since} {when} of {fault.get('case', '*')}"

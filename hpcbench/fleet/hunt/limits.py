"""What a hunt compares with beside the nodes themselves: an earlier hunt, minima, the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import field
from statistics import median
from types import MappingProxyType

from hpcbench.fleet.hunt.facts import ALONE, LESS, MEASURED, MEASURES, Fact
from hpcbench.fleet.hunt.slow import LEAST_DROP
from hpcbench.records import dataclass

Like = tuple[str, str, int, int, int]
"""Facts that are comparable: stage, measure, size_bytes, ranks, nodes."""
Row = tuple[str, int, int]
"""Of minima: measure, ranks, size_bytes."""


@dataclass(frozen=True, slots=True)
class HuntLimits:
    """Values to compare facts with.

    ``devices``: of a node. ``reference``: the median of good nodes in an earlier hunt, in the unit
    of the measure; a value may be worse by `LEAST_DROP`. ``minimum``: in bytes/s; none may be
    below."""

    devices: int | None = None
    reference: Mapping[Like, float] = field(default_factory=lambda: MappingProxyType({}))
    minimum: Mapping[Row, float] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def has_speeds(self) -> bool:
        return bool(self.reference or self.minimum)

    def expected(self, fact: Fact) -> tuple[float, str] | None:
        """Return the worst value that is good, and where it is from; None: nothing is known."""
        if (least := self.minimum.get((fact.measure, fact.ranks, fact.size_bytes))) is not None:
            return least, "minimum"
        if (usual := self.reference.get(like(fact))) is not None:
            is_less = MEASURES[fact.measure].good == LESS
            return (usual / (1 - LEAST_DROP) if is_less else usual * (1 - LEAST_DROP)), "reference"
        return None


def like(fact: Fact) -> Like:
    return fact.stage, fact.measure, fact.size_bytes, fact.ranks, len(fact.members)


def reference_of(facts: Iterable[Fact], good: Sequence[str]) -> dict[Like, float]:
    """Return the medians of facts of groups of good nodes only."""
    names, values = {*good}, dict[Like, list[float]]()
    for fact in facts:
        if fact.outcome == MEASURED and fact.value and names.issuperset(fact.members) and (
                not fact.node or fact.stage == ALONE):
            values.setdefault(like(fact), []).append(fact.value)
    return {key: median(some) for key, some in values.items()}

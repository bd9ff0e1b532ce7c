"""What a hunt compares with beside the nodes themselves: an earlier hunt, minima, the hardware."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field, replace
from statistics import median
from types import MappingProxyType

from hpcbench.fleet.hunt.blame import CONFIRMED, counted
from hpcbench.fleet.hunt.facts import (
    ALONE,
    LESS,
    MEASURED,
    MEASURES,
    PAIRS,
    SUSPECT,
    SWEEP,
    Fact,
    NodeVerdict,
    Round,
    names_text,
    value_text,
)
from hpcbench.fleet.hunt.slow import LEAST_DROP
from hpcbench.records import dataclass
from hpcbench.units import grouped

Like = tuple[str, str, int, int, int]
"""Facts that are comparable: stage, measure, size_bytes, ranks, nodes."""
NEARLY_ALL = 0.75
"""Share of its measurements in which a node has to miss a limit."""
Row = tuple[str, int, int]
"""Of minima: measure, ranks, size_bytes."""


@dataclass(frozen=True, slots=True)
class HuntLimits:
    """Values to compare facts with.

    ``devices``: of a node. ``reference``: the median of good nodes in an earlier hunt, in the unit
    of the measure; a value may be worse by `LEAST_DROP`. ``minimum``: in bytes/s; none may be
    below. ``vouched``: nodes of the reference that are good by the user's word."""

    devices: int | None = None
    reference: Mapping[Like, float] = field(default_factory=lambda: MappingProxyType({}))
    minimum: Mapping[Row, float] = field(default_factory=lambda: MappingProxyType({}))
    vouched: tuple[str, ...] = ()

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


def _missed(facts: Iterable[Fact], limits: HuntLimits) -> Iterator[tuple[Fact, float, str, bool]]:
    """Yield facts with the value that they should have, where it is from, whether they miss it."""
    for fact in facts:
        known = limits.expected(fact)
        if known and not (fact.node and len(fact.members) > 1) and fact.outcome == MEASURED and (
                fact.value is not None):
            is_less = MEASURES[fact.measure].good == LESS
            yield fact, *known, (fact.value > known[0] if is_less else fact.value < known[0])


def missed_verdicts(
    rounds: Sequence[Round], facts: Sequence[Fact], limits: HuntLimits,
) -> Iterator[NodeVerdict]:
    """Yield those that miss a limit in nearly all of their measurements: a node, by its pairs, too,
    where these are not all with one that does so as well; the nodes of a group are suspect."""
    sweeps = {step.number for step in rounds if step.purpose == SWEEP}
    measured = grouped(
        ((like(one[0]), one[0].rank, who), one) for one in _missed(facts, limits)
        for who in ([(name,) for name in one[0].members] if one[0].stage == PAIRS else
                    [one[0].members]) if one[0].stage != PAIRS or one[0].round in sweeps)
    missed = {key: low for key, some in measured.items()
              if (low := [one for one in some if one[3]])
              and len(low) >= max(NEARLY_ALL * len(some), CONFIRMED * (len(key[2]) > 1))}
    for (kind, rank, who), low in missed.items():
        fact, least, source, _ = low[0]
        value, limit = (value_text(number, fact.unit) for number in (fact.value or 0.0, least))
        found = counted(who[0], [one[0] for one in low],
                        f"{fact.measure} {value} misses the {source}, {limit}", least)
        others = {name for one in low for name in one[0].members} - {*who}
        if len(who) > 1:
            where = f", in the group {names_text(who)}"
        elif len(others) == 1 and (kind, rank, tuple(others)) in missed:
            where = f", with {names_text(others)} only"
        else:
            yield found
            continue
        for name in who:
            yield replace(found, node=name, verdict=SUSPECT, reason=found.reason + where)

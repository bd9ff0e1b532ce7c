"""Which node of a group is at fault, where only the group as a whole shows it: by elimination.

A `Meeting` is one group in one round: it shows a fault or is clean. A clean one clears its nodes of
the faults of groups that are not larger: some faults show in large groups only. What is left of a
group that showed the fault are its candidates; with one, the fault is that node's. Two such
meetings in different company accuse a node; else all candidates are suspect."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np

from hpcbench.fleet.hunt.facts import (
    BAD,
    DIED,
    FAULTS,
    LESS,
    MEASURED,
    MEASURES,
    NO_ANSWER,
    SUSPECT,
    Fact,
    NodeVerdict,
    Round,
    names_text,
)
from hpcbench.fleet.hunt.slow import LEAST_DROP
from hpcbench.records import dataclass
from hpcbench.units import grouped, plural

SLOW = "slow"
"""What a meeting shows whose rate is less than that of its like by `LEAST_DROP`."""
USUAL_PERCENT = 75
"""The usual rate of groups of a size: half of them may have a slow node."""
CONFIRMED = 2
"""An accusation takes so many independent measurements."""
_GONE = (DIED, NO_ANSWER)
"""Outcomes whose process is evidence enough, whoever was in company."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """One group of nodes in one round.

    Attributes:
        round, stage, purpose: as in its `Round`.
        nodes: the group.
        shows: an outcome of `FAULTS`, `SLOW`, or empty for a clean one.
        blamed: the nodes that evidence names.
        fact: what shows it; of a clean meeting any measurement.
        rates: (measure, size_bytes) -> the value, its reciprocal where less is better."""

    round: int
    stage: str
    purpose: str
    nodes: tuple[str, ...]
    shows: str
    blamed: tuple[str, ...]
    fact: Fact
    rates: Mapping[tuple[str, int], float]


def rate_of(fact: Fact) -> float | None:
    """Return the value such that more is better; None where there is no positive, finite one."""
    if fact.outcome != MEASURED or fact.value is None or not 0 < fact.value < math.inf:
        return None
    return 1 / fact.value if MEASURES[fact.measure].good == LESS else fact.value


def meetings_of(rounds: Sequence[Round], facts: Sequence[Fact], stage: str) -> list[Meeting]:
    """Return the meetings of groups of several nodes that were tried, in their order."""
    chosen = {step.number: step for step in rounds if step.stage == stage}
    groups = {(step.number, name): group.nodes for step in chosen.values()
              for group in step.groups if len(group.nodes) > 1 for name in group.nodes}
    parts = grouped(((fact.round, groups[key]), fact) for fact in facts
                    if fact.stage == stage
                    and (key := (fact.round, fact.members[0] if fact.members else "")) in groups)
    return [meeting for (number, nodes), some in parts.items()
            if (meeting := _meeting(chosen[number], nodes, some))]


def _meeting(step: Round, nodes: tuple[str, ...], facts: Sequence[Fact]) -> Meeting | None:
    faults = [fact for fact in facts if fact.outcome in FAULTS]
    rates = {(fact.measure, fact.size_bytes): rate for fact in facts
             if not fact.node and (rate := rate_of(fact)) is not None}
    if not faults and not rates:
        return None
    named = [fact for fact in faults if fact.node] or faults
    return Meeting(step.number, step.stage, step.purpose, nodes, named[0].outcome if named else "",
                 tuple(dict.fromkeys(fact.node for fact in named if fact.node)),
                 (named or facts)[0], rates)


def with_slow(meetings: Sequence[Meeting]) -> list[Meeting]:
    """Return the meetings without a fault that have their like, slow ones as `SLOW`."""
    sound = [meeting for meeting in meetings if not meeting.shows]
    alike = grouped((len(meeting.nodes), frozenset(meeting.nodes)) for meeting in sound)
    sound = [meeting for meeting in sound if len({*alike[len(meeting.nodes)]}) > 1]
    of_key = grouped(((len(meeting.nodes), key), rate)
                     for meeting in sound for key, rate in meeting.rates.items())
    usual = {key: float(np.percentile(rates, USUAL_PERCENT)) for key, rates in of_key.items()}
    marked = []
    for meeting in sound:
        shares = [rate / usual[len(meeting.nodes), key] for key, rate in meeting.rates.items()]
        slow = SLOW if min(shares) < 1 - LEAST_DROP else ""
        marked.append(replace(meeting, shows=slow))
    return marked


def cleared(meetings: Sequence[Meeting]) -> dict[str, int]:
    """Return node -> the size of the largest clean meeting that it was in."""
    sizes: dict[str, int] = {}
    for meeting in meetings:
        if not meeting.shows:
            for name in meeting.nodes:
                sizes[name] = max(sizes.get(name, 0), len(meeting.nodes))
    return sizes


def candidates(shown: Meeting, clean: Mapping[str, int]) -> tuple[str, ...]:
    """Return the nodes of a meeting that may be at fault, by what is `cleared`; maybe none."""
    return shown.blamed or tuple(
        name for name in shown.nodes if clean.get(name, 0) < len(shown.nodes))


def _attributed(meetings: Sequence[Meeting]) -> Iterator[tuple[str, Meeting]]:
    """Yield a node with each meeting whose fault is its own; of a pair of cleared nodes both."""
    clean = cleared(meetings)
    for meeting in meetings:
        if meeting.shows:
            left = candidates(meeting, clean)
            if meeting.blamed or len(left) == 1:
                yield from ((name, meeting) for name in left)
            elif not left and len(meeting.nodes) == 2:  # noqa: PLR2004  (a pair)
                yield from ((name, meeting) for name in meeting.nodes)


def accused(meetings: Sequence[Meeting]) -> dict[str, list[Meeting]]:
    """Return the nodes that two meetings in different company accuse, with these meetings."""
    of_node = grouped(_attributed(meetings))
    return {name: some for name, some in of_node.items()
            if len({frozenset(meeting.nodes) for meeting in some}) > 1
            or len({meeting.round for meeting in some if meeting.shows in _GONE}) > 1}


def unexplained(meetings: Sequence[Meeting], bad: Collection[str]) -> Iterator[Meeting]:
    """Yield the meetings that show a fault, but have no bad node."""
    yield from (meeting for meeting in meetings if meeting.shows and not {*meeting.nodes} & {*bad})


def faulty_nodes(meetings: Sequence[Meeting]) -> Iterator[NodeVerdict]:
    """Yield those whom faults of groups accuse as bad, then those who may have caused the rest."""
    bad = accused(meetings)
    for name, some in bad.items():
        fact = some[0].fact
        companies = [tuple(other for other in meeting.nodes if other != name) for meeting in some]
        yield NodeVerdict(
            name, BAD, f"{some[0].shows} in {plural(len(some), 'round')} with different nodes "
            f"({'; '.join(names_text(one) for one in companies[:3])}){_because(fact)}",
            fact.stage, fact.measure, rounds=tuple(meeting.round for meeting in some))
    clean = cleared(meetings)
    rest = grouped((meeting.nodes, meeting) for meeting in unexplained(meetings, bad))
    for nodes, some in rest.items():
        left = candidates(some[0], clean) or nodes
        fact = some[0].fact
        who = ("it" if len(left) == 1 else "the link between them" if len(nodes) == 2  # noqa: PLR2004
               else f"one of {names_text(left)}, or these together")
        for name in left:
            yield NodeVerdict(
                name, SUSPECT, f"{some[0].shows} in {plural(len(some), 'round')} of "
                f"{names_text(nodes)}, not confirmed in other company: {who}{_because(fact)}",
                fact.stage, fact.measure, rounds=tuple(meeting.round for meeting in some))


def _because(fact: Fact) -> str:
    return f"; {fact.evidence}" if fact.evidence else ""


def counted(name: str, facts: Sequence[Fact], reason: str, expected: float | None = None,
            ) -> NodeVerdict:
    """Return the verdict on a node that facts of as many rounds as `CONFIRMED` accuse, or fewer."""
    numbers = tuple(dict.fromkeys(fact.round for fact in facts))
    is_bad = len(numbers) >= CONFIRMED
    fact = facts[0]
    return NodeVerdict(
        name, BAD if is_bad else SUSPECT, f"{fact.stage}: {reason}, in "
        f"{plural(len(numbers), 'round')}" + ("" if is_bad else ", not confirmed by a second"),
        fact.stage, fact.measure, fact.value, expected, numbers)


def told(fact: Fact) -> str:
    """Return what shows a fact, in brackets."""
    return f" ({fact.evidence})" if fact.evidence else ""

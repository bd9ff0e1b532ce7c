"""What a hunt plans, measures and finds: records that planning, execution and judgement share.

Planning says who meets (`Round`), execution measures it and returns facts (`Fact`), and planning
goes on from them, until there is no further round; judgement reads all of them:

    hunt = Hunt(job, execute)                # hpcbench/fleet/hunt/plan.py; execute(Round) -> facts
    for step in hunt.run():                  # each round, after it was executed
        ...
    judgement = judge(job, hunt.rounds, hunt.facts, limits)   # hpcbench/fleet/hunt/judge.py

`execute` is called for one round after the other, on the rank that plans. A hunt may end after any
round, also by what `execute` raises: what is missing then is untested.

Numbers are in SI units: seconds, bytes, bytes per second, FLOP per second, hertz."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType

from hpcbench.records import dataclass
from hpcbench.units import format_seconds, three_digits

ALONE, PAIRS, LADDER = "alone", "pairs", "ladder"
STAGES = (ALONE, PAIRS, LADDER)
"""Stages in their order: each rank by itself, before MPI starts; two nodes; growing groups: first
of ranks of one node, then of nodes."""
SWEEP, CONFIRM, BISECT = "sweep", "confirm", "bisect"
"""Purposes of a round: all nodes in turn; suspects again in other company; a group in parts."""
ALL_RANKS = 0
"""`Company.ranks_per_node`: each node takes part with all ranks that it has."""

MEASURED, HANG, DIED, NO_ANSWER, MISSING, WRONG, UNTESTED = (
    "measured", "hang", "died", "no answer", "missing device", "wrong result", "untested")
"""Outcomes of a fact.

- `MEASURED`: ``value`` is a number.
- `HANG`: no end within the time limit, while the process lives.
- `DIED`: a process ended by a signal, an exit code or an exception.
- `NO_ANSWER`: no process on the node answers: it never started, or is gone since an earlier round.
- `MISSING`: a device that should be there is not, or cannot be opened; ``value`` is how many there
  are, where that can be counted.
- `WRONG`: a result differs from what the same operation gives by definition.
- `UNTESTED`: it was not tried, or was cut off by another's fault; ``evidence`` says why."""
FAULTS = (HANG, DIED, NO_ANSWER, MISSING, WRONG)
"""Outcomes that accuse: the node of the fact, else one of its group."""

MORE, LESS, EQUAL, ZERO = "more", "less", "equal", "zero"
"""Which values are good: the greater, the smaller, those that equal the others', 0 only."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """What a value is: its unit, which values are good, its meaning."""

    unit: str
    good: str
    meaning: str


MOST_NAMES = 8
"""In a line; files have all."""
_BUS = "bus bandwidth of {}, by the slowest rank's time"
MEASURES: Mapping[str, Quantity] = MappingProxyType({
    "answers": Quantity("", EQUAL, "1: all processes of the node answer"),
    "devices": Quantity("", EQUAL, "devices of the node that can be opened"),
    "gemm": Quantity("FLOP/s", MORE, "rate of a matrix product of a rank"),
    "memory": Quantity("B/s", MORE, "rate of a rank's memory"),
    "storage": Quantity("B/s", MORE, "rate of a rank's writes to the hunt's folder"),
    "clock": Quantity("Hz", MORE, "clock of a rank's device under load"),
    "ecc_uncorrected": Quantity("", ZERO, "uncorrected memory errors of a rank's device"),
    "throttled": Quantity("", ZERO, "share of the time in which the hardware slows itself down for "
                                   "heat or power supply"),
    "latency": Quantity("s", LESS, "half a round trip between two nodes"),
    "bandwidth": Quantity("B/s", MORE, "rate of messages between two nodes, both ways together"),
    **{name: Quantity("B/s", MORE, _BUS.format(name)) for name in (
        "all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast")},
})
"""Measure -> what it is. A fact names one of these; execution takes those that it can."""


_SCALES: Mapping[str, tuple[tuple[float, str], ...]] = {
    "B/s": ((1e9, "GB/s"), (1e6, "MB/s")), "FLOP/s": ((1e12, "TFLOP/s"), (1e9, "GFLOP/s")),
    "Hz": ((1e9, "GHz"), (1e6, "MHz"))}


def value_text(value: float, unit: str) -> str:
    """Return ``1.23 GB/s``: three digits and the unit that fits."""
    if unit == "s":
        return format_seconds(value)
    for scale, name in _SCALES.get(unit, ()):
        if value >= scale:
            return f"{three_digits(value / scale)} {name}"
    return f"{three_digits(value)} {unit}".rstrip()


def names_text(names: Iterable[str]) -> str:
    """Return ``n1, n2, n3 and 5 more``."""
    shown = list(names)
    more = len(shown) - MOST_NAMES
    return ", ".join(shown[:MOST_NAMES]) + (f" and {more} more" if more > 0 else "")


@dataclass(frozen=True, slots=True)
class Node:
    """A node of the allocation.

    Attributes:
        name: as Slurm names it; unique in the hunt.
        ranks: its ranks in the whole job, ascending; the first k are those of a group with k ranks
            a node.
        switch: the switch or rack that it hangs on, as Slurm's topology names it; empty where that
            is unknown. Nodes with the same text are judged as a group, too."""

    name: str
    ranks: tuple[int, ...]
    switch: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """The allocation, and what is asked of it.

    Attributes:
        nodes: in the order of the allocation, those that do not answer included.
        stage_s: seconds that a stage's sweep may take (``--stage-seconds``); a round takes its
            share of it (`Round.budget_s`).
        only: the name of the one node to judge after a repair (``--only``); empty judges all.
        partners: with ``only``, two names of nodes that are known as good."""

    nodes: tuple[Node, ...]
    stage_s: float = 45.0
    only: str = ""
    partners: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Company:
    """Nodes that measure together. ``ranks_per_node``: of each node the first so many ranks, or
    `ALL_RANKS`."""

    nodes: tuple[str, ...]
    ranks_per_node: int = ALL_RANKS


@dataclass(frozen=True, slots=True)
class Round:
    """Groups that measure at the same time, or in turn where nodes share cores.

    No node is in two groups. A node of the job that is in none waits the round out.

    Attributes:
        number: 0, 1, 2, ... over the whole hunt.
        stage: one of `STAGES`.
        purpose: `SWEEP`, `CONFIRM` or `BISECT`.
        groups: of the stage alone one for each node; of pairs two nodes each.
        budget_s: seconds that the measurements of the round should take together; the time limit,
            from which on a group hangs, is execution's."""

    number: int
    stage: str
    purpose: str
    groups: tuple[Company, ...]
    budget_s: float


@dataclass(frozen=True, slots=True)
class Fact:
    """One measurement of a node, or of a group of nodes, in one round.

    A group that measures together yields one fact a measure, with an empty ``node`` and all its
    nodes in ``peers``. Where evidence tells which node is at fault (the least progress, a signal, a
    wrong result of its own ranks only) there is a second fact of the outcome, with that ``node``
    and the others in ``peers``. A fact alone is of a node, without peers.

    Attributes:
        stage, round: as in the `Round` it comes from.
        node: the node that the value, or the outcome, is of; empty: of the group as a whole.
        measure: a key of `MEASURES`. Of an outcome that is no number, that which was tried.
        value: in the unit of the measure, the median where several were taken; None without one.
        outcome: `MEASURED`, or why there is no such number.
        peers: the nodes in company, without ``node``, in the order of the group.
        ranks: how many ranks measured together: 1 for a rank alone.
        rank: alone, the rank that the value is of; None: of the node or of the group.
        size_bytes: of the message or of the collective; 0 where there is none.
        evidence: what shows it, in a few words: ``rank 12 in all_reduce 3 of 10, signal 9``.
        at_s: seconds from the start of the hunt to the end of the measurement, one clock.
        expected: the value that judgement compared with; execution leaves None."""

    stage: str
    round: int
    node: str
    measure: str
    value: float | None = None
    outcome: str = MEASURED
    peers: tuple[str, ...] = ()
    ranks: int = 1
    rank: int | None = None
    size_bytes: int = 0
    evidence: str = ""
    at_s: float = 0.0
    expected: float | None = None

    @property
    def unit(self) -> str:
        return MEASURES[self.measure].unit

    @property
    def members(self) -> tuple[str, ...]:
        """Return the nodes that took part."""
        return (self.node, *self.peers) if self.node else self.peers


GOOD, BAD, SUSPECT, NOT_TESTED = "good", "bad", "suspect", "untested"
"""Verdicts: measured in all stages and accused by none; accused by two independent measurements;
accused, but not confirmed, or together with others; not measured enough for either."""


@dataclass(frozen=True, slots=True)
class NodeVerdict:
    """What is known of a node in the end.

    Attributes:
        node: its name.
        verdict: `GOOD`, `BAD`, `SUSPECT` or `NOT_TESTED`.
        reason: a line for an admin; empty for `GOOD`.
        stage, measure: of the accusation; empty where there is none.
        value, expected: what it reached and what it should have, in the unit of the measure.
        rounds: the rounds of the facts that the verdict is by."""

    node: str
    verdict: str
    reason: str = ""
    stage: str = ""
    measure: str = ""
    value: float | None = None
    expected: float | None = None
    rounds: tuple[int, ...] = ()

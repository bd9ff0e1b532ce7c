"""The roofline of a case, or of a phase of it: what it needs, against what the machine can do.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (Comm. ACM 52, 2009), with the network as a further roof. What is needed over a
ceiling is the least time that one resource takes. The longest of these binds; its share of the
measured time is the performance score. A time that no ceiling explains is latency: fixed costs of
calls, or waiting.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hpcbench.reduce.case_columns import CaseColumn
from hpcbench.reduce.ceilings import (
    COMMUNICATION,
    COMPUTE,
    DECLARED,
    LATENCY,
    LIMITS,
    MEMORY,
    Ceiling,
)
from hpcbench.reduce.checks import MOST_OF_PEAK
from hpcbench.trace.described import PURE, TEXT
from hpcbench.units import format_seconds, plural, round_bytes, to_gb_per_s, to_tflop_per_s

LEAST_EXPLAINED = 0.1
"""Share of a time below which its longest ceiling does not bind it."""
_ADD = {COMPUTE: "test gemm of its type or hardware.peak_flops",
        MEMORY: "test stream or hardware.memory_bandwidth_gb_per_s",
        COMMUNICATION: "test pairs of its backend or hardware.link_peaks"}


@dataclass(frozen=True, slots=True)
class Demand:
    """What a call, or a phase, needs of the rank that needs most; None where that is not known.

    ``memory_bytes``: each operand is read once, each result written once. ``network_bytes`` are
    sent by a rank, ``messages`` are the fewest that follow one another.
    """

    flops: float | None = 0.0
    memory_bytes: float | None = 0.0
    network_bytes: float | None = 0.0
    messages: int = 0

    def amount(self, limit: str) -> float | None:
        """Return what is needed of one of LIMITS."""
        return {COMPUTE: self.flops, MEMORY: self.memory_bytes,
                COMMUNICATION: self.network_bytes, LATENCY: float(self.messages)}[limit]


@dataclass(frozen=True, slots=True)
class Least:
    """The least time that one ceiling allows."""

    ceiling: Ceiling
    time_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """What binds a case or a phase.

    Attributes:
        part: the phase; empty of the whole.
        time_s: the measured time.
        demand: what it needs.
        least: the least times by each ceiling that there is, measured ones first.
        bound_by: one of LIMITS; None where a ceiling is missing that it needs, or where nothing
            tells what it needs.
        score: the share of the time that the binding ceiling explains, from 0 to 1: the
            performance score; None where ``bound_by`` is, or where the ceiling was exceeded.
        score_of: the ceiling that the score is of.
        evidence: why, in one sentence.
    """

    part: str
    time_s: float
    demand: Demand
    least: tuple[Least, ...]
    bound_by: str | None
    score: float | None
    score_of: Ceiling | None
    evidence: str

    @property
    def flop_per_memory_byte(self) -> float | None:
        """Return the arithmetic intensity; None without FLOPs or without bytes."""
        return _intensity(self.demand.flops, self.demand.memory_bytes)

    @property
    def flop_per_network_byte(self) -> float | None:
        """Return the FLOPs for each byte that a rank sends; None without one of them."""
        return _intensity(self.demand.flops, self.demand.network_bytes)

    @property
    def of_declared(self) -> float | None:
        """Return the same share of the declared ceiling; None without, or where it has the score.
        """
        if self.score_of is None or self.score_of.source == DECLARED:
            return None
        beside = (one.time_s for one in self.least if one.ceiling.source == DECLARED
                  and one.ceiling.limit == self.score_of.limit)
        least_s = next(beside, None)
        return None if least_s is None else least_s / self.time_s


BOUND_COLUMNS = (
    CaseColumn("bound_by", TEXT, "compute, memory, communication or latency; empty if unknown",
               str),
    CaseColumn("performance_score", PURE, "least time at the binding ceiling over the median"),
    CaseColumn("score_denominator", TEXT, "the ceiling that the score is of", str),
)
"""Columns of all that has a roofline."""
ROOFLINE_COLUMNS = (
    *BOUND_COLUMNS,
    CaseColumn("flop_per_memory_byte", "FLOP/byte", "FLOPs over the least bytes of memory"),
    CaseColumn("flop_per_network_byte", "FLOP/byte", "FLOPs over the bytes that a rank sends"),
)
ROOFLINE_FIELDS = ("bound_by", "performance_score", "score_denominator", "score_of_declared",
                   "bound_evidence", "flop_per_memory_byte", "flop_per_network_byte")
"""Fields of the summaries."""


def roofline(
    demand: Demand, time_s: float, ceilings: Sequence[Ceiling], part: str = "",
) -> Roofline | None:
    """Return what binds; None where nothing is needed of a ceiling that is there."""
    least = tuple(Least(ceiling, amount / ceiling.rate) for limit in LIMITS
                  for ceiling in ceilings if ceiling.limit == limit
                  and (amount := demand.amount(limit)))
    if not least or not time_s > 0:
        return None
    reason = _missing(demand, {one.ceiling.limit for one in least})
    return (Roofline(part, time_s, demand, least, None, None, None, reason) if reason else
            _bound(part, time_s, demand, least))


def share_of(least: Least, time_s: float) -> float | None:
    """Return the share of a time, from 0 to 1; None where the ceiling was exceeded."""
    share = least.time_s / time_s
    return None if share > MOST_OF_PEAK else min(share, 1.0)


def denominator(ceiling: Ceiling | None) -> str | None:
    """Return ``compute: fp32 products, measured``."""
    return f"{ceiling.limit}: {ceiling.of}, {ceiling.source}" if ceiling else None


def roofline_values(found: Roofline | None) -> dict[str, Any]:
    """Return the values of ROOFLINE_FIELDS, and so of ROOFLINE_COLUMNS, by name."""
    if found is None:
        return dict.fromkeys(ROOFLINE_FIELDS)
    values = (found.bound_by, found.score, denominator(found.score_of), found.of_declared,
              found.evidence, found.flop_per_memory_byte, found.flop_per_network_byte)
    return dict(zip(ROOFLINE_FIELDS, values, strict=True))


def column_values_of(
    found: Roofline | None, columns: Sequence[CaseColumn] = ROOFLINE_COLUMNS,
) -> Mapping[str, Any]:
    """Return the values of these columns."""
    values = roofline_values(found)
    return {column.name: values[column.name] for column in columns}


def _missing(demand: Demand, known: Container[str]) -> str:
    """Return why it is not known what binds: a part is missing; nothing if none is."""
    needed = {limit: demand.amount(limit) for limit in (COMPUTE, MEMORY, COMMUNICATION)}
    untold = [limit for limit, amount in needed.items() if amount is None]
    if untold:
        return f"unknown: nothing tells what it needs of {' and '.join(untold)}"
    lacks = [f"{limit} ({_ADD[limit]})" for limit, amount in needed.items()
             if amount and limit not in known]
    return f"unknown without a ceiling of {' and '.join(lacks)}" if lacks else ""


def _bound(part: str, time_s: float, demand: Demand, least: tuple[Least, ...]) -> Roofline:
    """Return what binds: the ceiling with the longest time, or latency where none explains enough.
    """
    first: dict[str, Least] = {}
    for one in least:  # measured ones come first
        first.setdefault(one.ceiling.limit, one)
    # data may stay in a cache, and messages may overlap: then their least times say nothing
    telling = [one for one in first.values()
               if one.ceiling.limit not in (MEMORY, LATENCY) or share_of(one, time_s) is not None]
    longest = max(telling or first.values(), key=lambda one: one.time_s)
    score, ceiling = share_of(longest, time_s), longest.ceiling
    told = "; ".join(_least_texts(demand, first, longest))
    if score is None:
        return Roofline(part, time_s, demand, least, ceiling.limit, None, ceiling, (
            f"{told}: more than the {format_seconds(time_s)} that it took, so this is no ceiling "
            "here, and there is no score"))
    explained = f"{told}: {100 * score:.3g} % of {format_seconds(time_s)}"
    if score >= LEAST_EXPLAINED or ceiling.limit == LATENCY:
        return Roofline(part, time_s, demand, least, ceiling.limit, score, ceiling, explained)
    return Roofline(part, time_s, demand, least, LATENCY, score, ceiling, (
        f"{explained}; no ceiling explains more, so the rest is fixed costs of calls, or waiting"))


def _least_texts(demand: Demand, first: Mapping[str, Least], longest: Least) -> Iterator[str]:
    """Yield what each ceiling allows at least, the longest last."""
    for limit, one in first.items():
        if one is not longest:
            yield f"{limit} {format_seconds(one.time_s)}"
    limit = longest.ceiling.limit
    yield (f"{limit} at least {format_seconds(longest.time_s)} for "
           f"{_amount_text(limit, demand.amount(limit) or 0)} at {rate_text(longest.ceiling)} of "
           f"{longest.ceiling.of}, {longest.ceiling.source}")


def rate_text(ceiling: Ceiling) -> str:
    """Return ``0.0834 TFLOP/s``, ``18.4 GB/s``, or ``144 us each``."""
    if ceiling.limit == LATENCY:
        return f"{format_seconds(1 / ceiling.rate)} each"
    if ceiling.limit == COMPUTE:
        return f"{to_tflop_per_s(ceiling.rate):.3g} TFLOP/s"
    return f"{to_gb_per_s(ceiling.rate):.3g} GB/s"


def _amount_text(limit: str, amount: float) -> str:
    if limit == COMPUTE:
        return f"{amount / 1e9:.3g} GFLOP"
    return plural(int(amount), "message") if limit == LATENCY else round_bytes(int(amount))


def _intensity(flops: float | None, moved: float | None) -> float | None:
    return flops / moved if flops and moved else None

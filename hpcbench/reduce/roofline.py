"""Roofline: the need of a case or phase against the rates of the machine, the network as a further
roof (Williams, Waterman and Patterson, Comm. ACM 52, 2009). Need over ceiling is the least time of
a resource; the longest binds, and its share of the measured time is the performance score. A time
that no ceiling explains is latency. Ceilings are measured in this run
(`kind_facts.MachineRate`) or declared by its sweep."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from typing import Any

from hpcbench import units
from hpcbench.operations.arrival import TOGETHER
from hpcbench.records import dataclass
from hpcbench.reduce.checks import MOST_OF_MEASURED, MOST_OF_PEAK, Violation
from hpcbench.reduce.kind_facts import MachineRate
from hpcbench.reduce.metric import metric, word
from hpcbench.reduce.results import CaseResult

COMPUTE, MEMORY, COMMUNICATION, LATENCY = "compute", "memory", "communication", "latency"
LIMITS = (COMPUTE, MEMORY, COMMUNICATION, LATENCY)
"""The limits that can bind a case."""
MEASURED, DECLARED = "measured", "declared"
_EIGHT_BITS = "fp8"
"""Key of ``hardware.peak_flops`` for all formats of 8 bits: their peaks are the same."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate of one rank in FLOP/s, bytes/s or messages/s; ``of`` is such as ``fp32 products``."""

    limit: str
    rate: float
    source: str
    of: str


def ceilings_of(
    item: CaseResult, dtype: str | None, hardware: Mapping[str, Any],
) -> tuple[Ceiling, ...]:
    """Return the ceilings of a rank whose products are of ``dtype``; measured ones first. None of
    a case with late ranks: its time has the delay in it."""
    if item.case.arrival != TOGETHER:
        return ()
    return (*_measured(item, dtype, hardware.get(MEASURED, {})),
            *_declared(item, dtype, hardware))


def device_of(item: CaseResult) -> str:
    return (item.device or item.case.device).partition(":")[0]


def link_key(item: CaseResult, first_ranks: int) -> str:
    return f"{device_of(item)} {item.case.backend} {first_ranks}"


def measured_link(
    item: CaseResult, hardware: Mapping[str, Any], what: str = "links",
) -> float | None:
    """Return the rate between two ranks at the greatest distance in the case, ``links`` in bytes/s
    or ``messages`` in messages/s; None if not measured."""
    rates: Mapping[str, float] = hardware.get(MEASURED, {}).get(what, {})
    start = link_key(item, 0).removesuffix("0")
    of_size = {int(key.removeprefix(start)): rate for key, rate in rates.items()
               if key.startswith(start) and key.removeprefix(start).isdigit()}
    reached = [ranks for ranks in of_size if ranks <= item.case.group_span]
    return of_size[max(reached)] if reached else None


def measured_rate(
    item: CaseResult, hardware: Mapping[str, Any], what: str, name: str,
) -> float | None:
    """Return the measured rate of a rank, with as many ranks if known: they share memory and power.
    ``what`` is ``flops`` or ``memory``, ``name`` device and type (``cpu fp32``) or device."""
    rates: Mapping[str, float] = hardware.get(MEASURED, {}).get(what, {})
    return rates.get(_of_ranks(name, item.case.world_size), rates.get(name))


def machine_rates(measured: Iterable[MachineRate]) -> dict[str, dict[str, float]]:
    """Return limit -> name -> the rate that cases measured of this machine.

    ``flops`` and ``memory`` are by `most_rates`, links' rates the best of any number of ranks; one
    that may be a cache's counts where there is no other."""
    by_limit = units.grouped((one.limit, one) for one in measured)
    rates = {limit: most_rates((one.name, one.ranks, one.rate) for one in by_limit.get(limit, ()))
             for limit in ("flops", "memory")}
    for limit in ("links", "messages"):
        best: dict[bool, dict[str, float]] = {True: {}, False: {}}
        for rate in by_limit.get(limit, ()):
            rate_known = best[rate.cached]
            rate_known[rate.name] = max(rate_known.get(rate.name, rate.rate), rate.rate)
        rates[limit] = best[True] | best[False]
    return rates


def most_rates(measured: Iterable[tuple[str, int, float]]) -> dict[str, float]:
    """Return the highest rate of the most ranks, of (name, concurrent ranks, rate), keyed as
    `measured_rate` reads them."""
    most: dict[str, tuple[int, float]] = {}
    for name, ranks, rate in measured:
        for key in (name, _of_ranks(name, ranks)):
            most[key] = max(most.get(key, (ranks, rate)), (ranks, rate))
    return {key: rate for key, (_, rate) in most.items()}


def _of_ranks(name: str, ranks: int) -> str:
    return f"{name} of {ranks}"


def over_measured(label: str, share: float | None) -> Iterator[Violation]:
    """HB146: a note if a case computes more than the products that this run measured."""
    if share is not None and share > MOST_OF_MEASURED:
        yield Violation(
            "HB146", f"{label} is {share:.0%} of the products that this run measured: measure gemm "
            "with as many ranks, and again on a quiet machine; or the case computes less than it "
            "is credited with", rejects=False)


def declared_flops(item: CaseResult, dtype: str, hardware: Mapping[str, Any]) -> float | None:
    if hardware.get("device_type") not in (None, device_of(item)):
        return None
    peaks: Mapping[str, float] = hardware.get("peak_flops", {})
    return peaks.get(dtype, peaks.get(_EIGHT_BITS) if dtype.startswith(_EIGHT_BITS) else None)


def declared_memory(item: CaseResult, hardware: Mapping[str, Any]) -> float | None:
    declared = hardware.get("memory_bandwidth_gb_per_s")
    if declared is None or hardware.get("device_type") not in (None, device_of(item)):
        return None
    return float(declared) * 1e9


def _measured(
    item: CaseResult, dtype: str | None, measured: Mapping[str, Mapping[str, float]],
) -> Iterator[Ceiling]:
    device, hardware = device_of(item), {MEASURED: measured}
    rates = (
        (COMPUTE, measured_rate(item, hardware, "flops", f"{device} {dtype}"),
         f"{dtype} products"),
        (MEMORY, measured_rate(item, hardware, "memory", device), "memory"),
        (COMMUNICATION, measured_link(item, hardware), f"a pair of ranks by {item.case.backend}"),
        (LATENCY, measured_link(item, hardware, "messages"),
         f"small messages of a pair by {item.case.backend}"))
    for limit, rate, of in rates:
        if rate:
            yield Ceiling(limit, rate, MEASURED, of)


def _declared(
    item: CaseResult, dtype: str | None, hardware: Mapping[str, Any],
) -> Iterator[Ceiling]:
    link = item.timing.link_bytes_per_s if item.timing and item.case.group_size > 1 else None
    rates = (
        (COMPUTE, declared_flops(item, dtype, hardware) if dtype else None, f"{dtype} products"),
        (MEMORY, declared_memory(item, hardware), "memory"), (COMMUNICATION, link, "links"))
    for limit, rate, of in rates:
        if rate:
            yield Ceiling(limit, rate, DECLARED, of)


LEAST_EXPLAINED = 0.1
"""Share of a time below which its longest ceiling does not bind it."""
_ADD = {COMPUTE: "test gemm of its type or hardware.peak_flops",
        MEMORY: "test stream or hardware.memory_bandwidth_gb_per_s",
        COMMUNICATION: "test pairs of its backend or hardware.link_peaks"}


@dataclass(frozen=True, slots=True)
class Demand:
    """The need of the rank that needs most; None if unknown. Each operand is read once, each result
    written once; ``messages`` are the fewest sequential ones."""

    flops: float | None = 0.0
    memory_bytes: float | None = 0.0
    network_bytes: float | None = 0.0
    messages: int = 0

    def amount(self, limit: str) -> float | None:
        return {COMPUTE: self.flops, MEMORY: self.memory_bytes,
                COMMUNICATION: self.network_bytes, LATENCY: float(self.messages)}[limit]


@dataclass(frozen=True, slots=True)
class Least:
    """The least time that one ceiling allows."""

    ceiling: Ceiling
    time_s: float


@dataclass(frozen=True, slots=True)
class Roofline:
    """The limit of a case or a phase (``part``). ``least``: times by each ceiling, measured first.
    ``bound_by`` is None where a needed ceiling or need is unknown. ``score``: share of the time
    that the binding ceiling ``score_of`` explains; None where exceeded. ``evidence``: why, in
    words."""

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
        return _intensity(self.demand.flops, self.demand.memory_bytes)

    @property
    def flop_per_network_byte(self) -> float | None:
        return _intensity(self.demand.flops, self.demand.network_bytes)

    @property
    def of_declared(self) -> float | None:
        """Return the share of the time that the declared ceiling explains; None without, or where
        ``score`` is of it."""
        if self.score_of is None or self.score_of.source == DECLARED:
            return None
        beside = (one.time_s for one in self.least if one.ceiling.source == DECLARED
                  and one.ceiling.limit == self.score_of.limit)
        least_s = next(beside, None)
        return None if least_s is None else least_s / self.time_s


BOUND = (
    word("bound_by", "compute, memory, communication or latency; empty if unknown",
         title="bound by", optional=True),
    metric("performance_score", "least time at the binding ceiling over the median"),
    word("score_denominator", "the ceiling that the score is of"),
    metric("score_of_declared", "least time at the declared ceiling over the median"),
    word("bound_evidence", "why, in words"))
"""Numbers of all that has a roofline."""
INTENSITY = (
    metric("flop_per_memory_byte", "FLOPs over the least bytes of memory", "FLOP/byte"),
    metric("flop_per_network_byte", "FLOPs over the bytes that a rank sends", "FLOP/byte"))
ROOFLINE = (*BOUND, *INTENSITY)


def roofline(
    demand: Demand, time_s: float, ceilings: Sequence[Ceiling], part: str = "",
) -> Roofline | None:
    """Return the limit that binds; None without a ceiling for any need."""
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


def roofline_values(bound: Roofline | None) -> dict[str, Any]:
    """Return the values of ROOFLINE."""
    if bound is None:
        return {one.name: None for one in ROOFLINE}
    ceiling = bound.score_of
    values = (bound.bound_by, bound.score,
              f"{ceiling.limit}: {ceiling.of}, {ceiling.source}" if ceiling else None,
              bound.of_declared, bound.evidence, bound.flop_per_memory_byte,
              bound.flop_per_network_byte)
    return {one.name: value for one, value in zip(ROOFLINE, values, strict=True)}


def _missing(demand: Demand, known: Container[str]) -> str:
    """Return why the bound is unknown: a missing part; nothing if none is."""
    needed = {limit: demand.amount(limit) for limit in (COMPUTE, MEMORY, COMMUNICATION)}
    uncounted = [limit for limit, amount in needed.items() if amount is None]
    if uncounted:
        return f"unknown: its {' and '.join(uncounted)} is not counted"
    lacks = [f"{limit} ({_ADD[limit]})" for limit, amount in needed.items()
             if amount and limit not in known]
    return f"unknown without a ceiling of {' and '.join(lacks)}" if lacks else ""


def _bound(part: str, time_s: float, demand: Demand, least: tuple[Least, ...]) -> Roofline:
    first: dict[str, Least] = {}
    for limit in least:  # measured ones come first
        first.setdefault(limit.ceiling.limit, limit)
    # data may stay in a cache, and messages may overlap: then their least times mean nothing
    applicable = [one for one in first.values()
                  if one.ceiling.limit not in (MEMORY, LATENCY)
                  or share_of(one, time_s) is not None]
    longest = max(applicable or first.values(), key=lambda one: one.time_s)
    score, ceiling = share_of(longest, time_s), longest.ceiling
    bounds = "; ".join(_least_texts(demand, first, longest))
    if score is None:
        return Roofline(part, time_s, demand, least, ceiling.limit, None, ceiling, (
            f"{bounds}: more than the {units.format_seconds(time_s)} that it took, so this is no "
            "ceiling here, and there is no score"))
    explained = f"{bounds}: {units.digits(100 * score, 3)} % of {units.format_seconds(time_s)}"
    if score >= LEAST_EXPLAINED or ceiling.limit == LATENCY:
        return Roofline(part, time_s, demand, least, ceiling.limit, score, ceiling, explained)
    return Roofline(part, time_s, demand, least, LATENCY, score, ceiling, (
        f"{explained}; no ceiling explains more, so the rest is fixed costs of calls, or waiting"))


def _least_texts(demand: Demand, first: Mapping[str, Least], longest: Least) -> Iterator[str]:
    for limit, bound in first.items():
        if bound is not longest:
            yield f"{limit} {units.format_seconds(bound.time_s)}"
    limit = longest.ceiling.limit
    yield (f"{limit} at least {units.format_seconds(longest.time_s)} for "
           f"{_amount_text(limit, demand.amount(limit) or 0)} at {rate_text(longest.ceiling)} of "
           f"{longest.ceiling.of}, {longest.ceiling.source}")


def rate_text(ceiling: Ceiling) -> str:
    """Return ``0.0834 TFLOP/s``, ``18.4 GB/s``, or ``144 us each``."""
    if ceiling.limit == LATENCY:
        return f"{units.format_seconds(1 / ceiling.rate)} each"
    if ceiling.limit == COMPUTE:
        return f"{units.three_digits(units.to_tflop_per_s(ceiling.rate))} TFLOP/s"
    return f"{units.three_digits(units.to_gb_per_s(ceiling.rate))} GB/s"


def _amount_text(limit: str, amount: float) -> str:
    if limit == COMPUTE:
        return f"{units.three_digits(amount / 1e9)} GFLOP"
    return (units.plural(int(amount), "message") if limit == LATENCY else
            units.round_bytes(int(amount)))


def _intensity(flops: float | None, moved: float | None) -> float | None:
    return flops / moved if flops and moved else None

"""What a rank can reach at most: rates that this run measured, and those that its sweep declares.

What was measured stands in ``hardware["measured"]`` (`kinds.kind.Deriver.measured`). Where neither
is there, there is no ceiling: none is guessed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from hpcbench.reduce.checks import MOST_OF_MEASURED, Problem
from hpcbench.reduce.results import CaseResult

COMPUTE, MEMORY, COMMUNICATION, LATENCY = "compute", "memory", "communication", "latency"
LIMITS = (COMPUTE, MEMORY, COMMUNICATION, LATENCY)
"""What a case can be bound by."""
MEASURED, DECLARED = "measured", "declared"
_EIGHT_BITS = "fp8"
"""Key of ``hardware.peak_flops`` for all formats of 8 bits: their peaks are the same."""


@dataclass(frozen=True, slots=True)
class Ceiling:
    """A rate of one rank.

    Attributes:
        limit: one of LIMITS.
        rate: FLOP/s, bytes/s, or messages/s of latency.
        source: MEASURED or DECLARED.
        of: what it is the rate of, such as ``fp32 products``.
    """

    limit: str
    rate: float
    source: str
    of: str


def ceilings_of(
    item: CaseResult, dtype: str | None, hardware: Mapping[str, Any],
) -> tuple[Ceiling, ...]:
    """Return the ceilings of a rank of a case whose products are of ``dtype``; measured ones first.
    """
    return (*_measured(item, dtype, hardware.get(MEASURED, {})),
            *_declared(item, dtype, hardware))


def device_of(item: CaseResult) -> str:
    """Return ``cpu`` or ``cuda``: where the case ran, or was planned to run."""
    return (item.device or item.case.device).partition(":")[0]


def link_key(item: CaseResult, first_ranks: int) -> str:
    """Return the key of a link's rate for cases of at least so many of the first ranks."""
    return f"{device_of(item)} {item.case.backend} {first_ranks}"


def measured_link(
    item: CaseResult, hardware: Mapping[str, Any], what: str = "links",
) -> float | None:
    """Return the rate between two ranks of a case: that of the greatest distance among them.

    ``what``: ``links`` for bytes/s, ``messages`` for messages/s. None where it was not measured,
    or where the case has one rank.
    """
    rates: Mapping[str, float] = hardware.get(MEASURED, {}).get(what, {})
    start = link_key(item, 0).removesuffix("0")
    found = {int(key.removeprefix(start)): rate for key, rate in rates.items()
             if key.startswith(start) and key.removeprefix(start).isdigit()}
    reached = [ranks for ranks in found if ranks <= item.case.group_span]
    return found[max(reached)] if reached else None


def measured_rate(
    item: CaseResult, hardware: Mapping[str, Any], what: str, name: str,
) -> float | None:
    """Return the rate of a rank that this run measured: of as many ranks, else of the most.

    ``what`` is ``flops`` or ``memory``, ``name`` the device and type (``cpu fp32``) or the device.
    Ranks that run at once share memory and power, so the rate of more of them is lower.
    """
    rates: Mapping[str, float] = hardware.get(MEASURED, {}).get(what, {})
    return rates.get(_of_ranks(name, item.case.world_size), rates.get(name))


def most_rates(measured: Iterable[tuple[str, int, float]]) -> dict[str, float]:
    """Return the highest of rates (name, ranks at once, rate), as `measured_rate` reads them.

    They are by name, of the most ranks, and by name and number of ranks.
    """
    found: dict[str, tuple[int, float]] = {}
    for name, ranks, rate in measured:
        for key in (name, _of_ranks(name, ranks)):
            found[key] = max(found.get(key, (ranks, rate)), (ranks, rate))
    return {key: rate for key, (_, rate) in found.items()}


def _of_ranks(name: str, ranks: int) -> str:
    return f"{name} of {ranks}"


def over_measured(label: str, share: float | None) -> Iterator[Problem]:
    """HB146: yield a note if what a case computes is over the products that this run measured."""
    if share is not None and share > MOST_OF_MEASURED:
        yield Problem(
            "HB146", f"{label} is {share:.0%} of the products that this run measured: measure gemm "
            "with as many ranks, and again on a quiet machine; or the case computes less than it "
            "is credited with", rejects=False)


def declared_flops(item: CaseResult, dtype: str, hardware: Mapping[str, Any]) -> float | None:
    """Return the declared peak of a case's device; None where none is, or of another device."""
    if hardware.get("device_type") not in (None, device_of(item)):
        return None
    peaks: Mapping[str, float] = hardware.get("peak_flops", {})
    return peaks.get(dtype, peaks.get(_EIGHT_BITS) if dtype.startswith(_EIGHT_BITS) else None)


def declared_memory(item: CaseResult, hardware: Mapping[str, Any]) -> float | None:
    """Return the declared bytes/s of the memory of a case's device; None where none is."""
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

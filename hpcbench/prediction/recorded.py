"""What a job recorded (``traffic.json``) would communicate on another number of ranks: groups of
all its ranks have all of the new ones, others stay as they are; sizes and numbers of calls stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcbench.operations.traffic import Signature, TrafficRecord
from hpcbench.prediction.laws import ALGORITHMS
from hpcbench.reduce.kind_facts import RepeatedCall, StepDemand
from hpcbench.units import grouped


def recorded_demands(
    record: TrafficRecord, ranks: int,
) -> tuple[dict[str | None, StepDemand], Mapping[str, int]]:
    """Return the calls of the mean rank on so many ranks by backend, None where the record names
    none; and why others are left out -> how many of all ranks. A message is between two."""
    calls: Counter[tuple[str | None, str, int, int, int]] = Counter()
    left: Counter[str] = Counter()
    for one in record.signatures:
        group = record.groups[one.group].ranks
        members = tuple(group[place] for place in one.pair) if one.pair else group
        if why := _why_left_out(one, len(members)):
            left[why] += one.count
            continue
        whole = not one.pair and len(members) == record.world_size
        size, stride = (ranks, 1) if whole else (len(members), _stride(members))
        if size > 1:
            calls[one.backend, one.collective, size, stride, one.bytes] += (
                one.count * len(members))
    demands = grouped((backend, RepeatedCall(
        collective, size, stride, count / record.world_size, size_bytes))
        for (backend, collective, size, stride, size_bytes), count in calls.items())
    return {backend: StepDemand(0.0, tuple(own)) for backend, own in demands.items()}, left


def _why_left_out(one: Signature, ranks: int) -> str:
    if one.collective not in ALGORITHMS:
        return f"of {one.collective}, which has no law"
    return "with parts of different sizes" if one.is_uneven(ranks) else ""


def _stride(members: tuple[int, ...]) -> int:
    """Return how far neighbours of a group are apart, the farthest ones where that differs."""
    ordered = sorted(members)
    return max((b - a for a, b in zip(ordered, ordered[1:], strict=False)), default=1)

"""What a job recorded (``traffic.json``) would communicate on another number of ranks: groups of
all its ranks have all of the new ones, others stay as they are; sizes and numbers of calls stay."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from hpcbench.operations.traffic import Signature, TrafficRecord
from hpcbench.prediction.laws import ALGORITHMS
from hpcbench.reduce.kind_facts import RepeatedCall, StepDemand


def recorded_demand(record: TrafficRecord, ranks: int) -> tuple[StepDemand, Mapping[str, int]]:
    """Return the calls of the mean rank on so many ranks, and why others are left out -> how many
    of all ranks."""
    calls: Counter[tuple[str, int, int, int]] = Counter()
    left: Counter[str] = Counter()
    for one in record.signatures:
        members = record.groups[one.group].ranks
        if why := _why_left_out(one, len(members)):
            left[why] += one.count
            continue
        whole = len(members) == record.world_size
        size, stride = (ranks, 1) if whole else (len(members), _stride(members))
        if size > 1:
            calls[one.collective, size, stride, one.bytes] += one.count * len(members)
    return StepDemand(0.0, tuple(
        RepeatedCall(collective, size, stride, count / record.world_size, size_bytes)
        for (collective, size, stride, size_bytes), count in calls.items())), left


def _why_left_out(one: Signature, ranks: int) -> str:
    if one.collective not in ALGORITHMS:
        return f"of {one.collective}, which has no law"
    return "with parts of different sizes" if one.is_uneven(ranks) else ""


def _stride(members: tuple[int, ...]) -> int:
    """Return how far neighbours of a group are apart, the farthest ones where that differs."""
    ordered = sorted(members)
    return max((b - a for a, b in zip(ordered, ordered[1:], strict=False)), default=1)

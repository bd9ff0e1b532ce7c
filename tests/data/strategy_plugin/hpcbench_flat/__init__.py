"""Strategy ``flat`` as plans know it; imported where results are read, so without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from hpcbench.plugins import (
    Calls,
    Degrees,
    Option,
    StrategySpec,
    Tensor,
    Training,
    Values,
    calls,
)


def degrees(ranks: int, options: Mapping[str, Option]) -> Degrees | str:
    """Return as many replicas as ranks, or why there are none."""
    return Degrees(dp=ranks) if ranks > 1 else "one rank has no other to average with"


def unfit(work: Training) -> str | None:
    """Return why a training does not suit the strategy, or None."""
    return "flat averages in fp32 and bf16 only" if work.dtype == "fp16" else None


def traffic(work: Training, held: Sequence[Tensor]) -> Iterator[Calls]:
    """Yield the all_reduces of all gradients, which are fp32, in as many parts as chosen."""
    elements, parts = sum(item.elements for item in held), int(work.option("parts"))
    yield calls("all_reduce", work.dp, [
        4 * (elements // parts + (part < elements % parts)) for part in range(parts)])


SPEC = StrategySpec(
    name="flat", meaning="every rank has the whole model, gradients are averaged at the end",
    runner="hpcbench_flat.strategy:Flat", degrees=degrees, unfit=unfit, traffic=traffic,
    calls=lambda work: ("all_reduce",), options={"parts": Values(1)})

"""Which settings of a training would fit into memory, as predicted, where it does not. Pure."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any

from hpcbench.kinds.training.plan.memory import memories, moments
from hpcbench.kinds.training.plan.registry import strategy
from hpcbench.kinds.training.plan.stages import stages_of
from hpcbench.kinds.training.plan.validity import why_not
from hpcbench.kinds.training.plan.workload import CHUNKED, Training

Setting = Mapping[str, Any]
_TRIED = 4096
"""Values of a setting that are looked at for one that the strategy can take."""
_CHECKPOINTINGS = ("none", "operators", "selective", "full")
"""By what is computed again, least first; operators, which repeat no product, may keep most."""


def advice(work: Training, available: int) -> str:
    """Return what a rank was to need, and what of it fits into ``available`` bytes.

    ``predicted 5.2 GB; to fit, as predicted: batch_size 4, or accumulation 2``: the mildest value
    of each setting alone, or of two together if none is enough. Where the prediction would have
    fitted, it was too low, and half of it is aimed at.
    """
    needed = predicted(work)
    budget = available if needed > available else needed // 2
    fitting = list(_alone(work, budget)) or list(_together(work, budget))
    if not fitting:
        fixed = max(memory.total - memory.activations
                    for stage in stages_of(work) for memory in moments(work, stage))
        return (f"predicted {_gb(needed)}; no batch_size fits: {_gb(fixed)} of it are no "
                "activations")
    settings = ", or ".join(" with ".join(f"{name} {value}" for name, value in setting.items())
                            for setting in fitting)
    if needed > available:
        return f"predicted {_gb(needed)}; to fit, as predicted: {settings}"
    return f"predicted {_gb(needed)}, more was needed; to need half as much: {settings}"


def predicted(work: Training) -> int:
    """Return the bytes that the rank with most needs."""
    return max(memory.total for memory in memories(work))


def _alone(work: Training, budget: int) -> Iterator[Setting]:
    """Yield the mildest value of each setting that fits with the others as they are."""
    samples, stronger = work.batch_size, _CHECKPOINTINGS.index(work.checkpointing) + 1
    yield from _mildest(work, budget, "batch_size", range(samples - 1, 0, -1))
    yield from _mildest(work, budget, "accumulation", range(work.accumulation + 1, samples + 1))
    fitting = (setting for value in _CHECKPOINTINGS[stronger:]
               for setting in _mildest(work, budget, "checkpointing", (value,)))
    yield from islice(fitting, 1)
    yield from _mildest(work, budget, "loss", (CHUNKED,))


def _together(work: Training, budget: int) -> Iterator[Setting]:
    """Yield what fits with all activations computed again."""
    again = replace(work, checkpointing="full")
    for setting in _mildest(again, budget, "batch_size", range(work.batch_size - 1, 0, -1)):
        yield {**setting, "checkpointing": "full"}


def _mildest(
    work: Training, budget: int, name: str, values: Sequence[int | str],
) -> Iterator[Setting]:
    """Yield the first value that fits and goes with the strategy.

    Each value needs less memory than those before it. A bisection finds the first that fits,
    because batches may be of millions.
    """
    def with_(value: int | str) -> Training:
        setting: Setting = {name: value}
        return replace(work, **setting)

    spec = strategy(work.strategy)
    first = bisect_left(values, True, key=lambda value: predicted(with_(value)) <= budget)
    usable = ({name: value} for value in values[first:first + _TRIED]
              if spec and why_not(with_(value), spec) is None)
    yield from islice(usable, 1)


def _gb(size: int) -> str:
    return f"{size / 1e9:.3g} GB"

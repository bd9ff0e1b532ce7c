"""What all points have, and how many a sweep has: counted before they are written out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, NamedTuple

from hpcbench.config.block import Block
from hpcbench.config.implementations import OptionAxes
from hpcbench.errors import ConfigError
from hpcbench.kinds.kind import Planner

if TYPE_CHECKING:
    from hpcbench.config.schema import Config

MAX_POINTS = 200_000
"""Larger products are refused before they are written out."""
COMMON_AXES = ("dtype", "backend", "device", "world_size", "mode", "warmup", "iterations", "check",
               "wakeup_s", "cuda_graph")
"""The axes that blocks of every kind have, but for ``env``."""


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """What a plan is made from: the configuration, and the number of ranks."""

    config: Config
    world_size: int


class CommonPoint(NamedTuple):
    """One value of every axis that blocks of all kinds have: where a case runs, how it is measured.

    ``env`` is sorted by name, ``iterations`` may be ``auto``, ``wakeup_s`` is in seconds.
    """

    dtype: str
    backend: str
    device: str
    env: tuple[tuple[str, str], ...]
    world_size: int
    mode: str
    warmup: int
    iterations: int | str
    validate: bool
    wakeup_s: float
    cuda_graph: bool = False


def common_points(block: Block, job: PlanRequest) -> Iterator[CommonPoint]:
    """Yield the points of the common axes; ``all`` becomes the job's world size."""
    sizes = [job.world_size if size == "all" else int(size) for size in block.world_size]
    for dtype, backend, device, env, size, measured in product(
            block.dtype, block.backend, block.device, environments(block), sizes,
            measurements(block, job.config)):
        yield CommonPoint(dtype, backend, device, env, size, *measured)


def environments(block: Block) -> tuple[tuple[tuple[str, str], ...], ...]:
    """Return each combination of the block's environment variables, sorted by name."""
    return tuple(product(*([(name, value) for value in block.env[name]]
                           for name in sorted(block.env))))


class MeasurementAxes(NamedTuple):
    """The values of each axis that says how a case is measured: the block's, else the sweep's."""

    mode: tuple[str, ...]
    warmup: tuple[int, ...]
    iterations: tuple[int | str, ...]
    validate: tuple[bool, ...]
    wakeup_s: tuple[float, ...]
    cuda_graph: tuple[bool, ...]


def measurement_axes(block: Block, config: Config) -> MeasurementAxes:
    """Return what the block says, and what the sweep says where the block says nothing."""
    measure = config.measure
    return MeasurementAxes(
        block.mode or (measure.mode,), block.warmup or (measure.warmup,),
        block.iterations or (measure.iterations,), block.check or (measure.check,),
        block.wakeup_s or (config.launch.wakeup_s,),
        block.cuda_graph or (False,))


def measurements(
    block: Block, config: Config,
) -> tuple[tuple[str, int, int | str, bool, float, bool], ...]:
    """Return each combination of the axes that say how a case is measured."""
    return tuple(product(*measurement_axes(block, config)))


def refuse_huge(blocks: Sequence[tuple[Planner, Block]], config: Config) -> None:
    """Raise ConfigError if the blocks have more than MAX_POINTS points together."""
    lengths = [{**planner.lengths(block, config),
                **{f"env.{name}": len(values) for name, values in block.env.items()}}
               for planner, block in blocks]
    total = sum(math.prod(axes.values()) for axes in lengths)
    if total <= MAX_POINTS:
        return
    largest = max(lengths, key=lambda axes: math.prod(axes.values()))
    axes = " x ".join(f"{name} {length}" for name, length in largest.items() if length > 1)
    raise ConfigError(f"benchmarks: the sweep has {total:,} points, more than {MAX_POINTS:,}; "
                      f"shorten an axis of the largest block: {axes}")


def listed_lengths(block: Block, names: Sequence[str]) -> dict[str, int]:
    """Return the lengths of these axes of a block; one that is not given has one value."""
    return {name: len(getattr(block, name) or (None,)) for name in names}


def number_of_sets(named: Mapping[str, Sequence[OptionAxes]]) -> int:
    """Return how many combinations of options named sets have together."""
    return sum(math.prod(map(len, axes.values())) for sets in named.values() for axes in sets)

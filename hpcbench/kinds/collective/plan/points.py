"""The points of a block of collectives: the product of its axes."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any, NamedTuple

from hpcbench.config.schema import Config
from hpcbench.kinds.collective.plan.block import CollectiveBlock


class Point(NamedTuple):
    """One value of every axis, in the order in which the last varies fastest."""

    collective: str
    backend: str
    device: str
    env: tuple[tuple[str, str], ...]
    world_size: int
    dtype: str
    op: str
    root: int
    in_place: bool | None
    split: str
    groups: int
    mode: str
    warmup: int
    iterations: int | str
    validate: bool
    size_bytes: int
    wakeup_s: float


def points(block: CollectiveBlock, config: Config, world_size: int) -> Iterator[Point]:
    """Yield the points of a block; ``all`` becomes the job's world size."""
    axes = axes_of(block, config)
    axes["env"] = tuple(product(*_variables(block)))
    axes["world_size"] = tuple(world_size if k == "all" else k for k in block.world_size)
    return (Point(*values) for values in product(*axes.values()))


def axes_of(block: CollectiveBlock, config: Config) -> dict[str, tuple[Any, ...]]:
    """Return axis -> values, in `Point`'s order; env is left to be multiplied out."""
    measure = config.measure
    return {
        "collective": block.collective, "backend": block.backend, "device": block.device,
        "env": (), "world_size": block.world_size, "dtype": block.dtype, "op": block.op,
        "root": block.root, "in_place": block.in_place or (None,),
        "split": block.split, "groups": block.groups,
        "mode": block.mode or (measure.mode,),
        "warmup": block.warmup or (measure.warmup,),
        "iterations": block.iterations or (measure.iterations,),
        "validate": block.check or (measure.check,),
        "size": block.size, "wakeup_s": block.wakeup_s or (config.launch.wakeup_s,),
    }


def _variables(block: CollectiveBlock) -> list[list[tuple[str, str]]]:
    """Return (name, value) pairs per variable, sorted by name so that equal ones compare equal."""
    return [[(name, value) for value in block.env[name]] for name in sorted(block.env)]

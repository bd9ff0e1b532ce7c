"""The points of a block: the product of its axes, counted before it is written out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, NamedTuple

from hpcbench.config.blocks import AnyBlock, CollectiveBlock, PrimitiveBlock, TrainingBlock
from hpcbench.config.implementations import OptionAxes
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError

MAX_POINTS = 200_000
"""Larger products are refused before they are written out."""
_OF_BOTH = ("dtype", "backend", "device", "world_size", "mode", "warmup", "iterations", "check",
            "wakeup_s")
_OF_PRIMITIVES = ("primitive", "m", "n", "k", "model", "layer", "tokens", "degree", "order",
                  *_OF_BOTH)
_OF_TRAININGS = ("model", "layers", "hidden", "vocab", "seq_length", "width", "classes",
                 "image_size", "batch_size", "accumulation", "optimizer", "checkpointing",
                 "communication", "data", "library", "compile", *_OF_BOTH)


@dataclass(frozen=True, slots=True)
class Job:
    """What cases are planned for."""

    config: Config
    world_size: int


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
    axes = _axes(block, config)
    axes["env"] = tuple(product(*_variables(block)))
    axes["world_size"] = tuple(world_size if k == "all" else k for k in block.world_size)
    return (Point(*values) for values in product(*axes.values()))


def _axes(block: CollectiveBlock, config: Config) -> dict[str, tuple[Any, ...]]:
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


def refuse_huge(blocks: Sequence[AnyBlock], config: Config) -> None:
    """Raise ConfigError if the blocks have more than MAX_POINTS points together."""
    lengths = [_lengths(block, config) for block in blocks]
    total = sum(math.prod(axes.values()) for axes in lengths)
    if total <= MAX_POINTS:
        return
    largest = max(lengths, key=lambda axes: math.prod(axes.values()))
    axes = " x ".join(f"{name} {length}" for name, length in largest.items() if length > 1)
    raise ConfigError(f"benchmarks: the sweep has {total:,} points, more than {MAX_POINTS:,}; "
                      f"shorten an axis of the largest block: {axes}")


def _lengths(block: AnyBlock, config: Config) -> dict[str, int]:
    """Return the axes' lengths; of named sets of options the sum over the sets."""
    if isinstance(block, PrimitiveBlock):
        lengths = _listed(block, _OF_PRIMITIVES)
        lengths["implementations"] = _sets(block.implementations)
        lengths |= {f"options.{name}": len(values) for name, values in block.options.items()}
    elif isinstance(block, TrainingBlock):
        lengths = _listed(block, _OF_TRAININGS) | {"strategies": _sets(block.strategies)}
    else:
        lengths = {name: len(values) for name, values in _axes(block, config).items()
                   if name != "env"}
    return lengths | {f"env.{name}": len(values) for name, values in block.env.items()}


def _listed(block: AnyBlock, names: Sequence[str]) -> dict[str, int]:
    return {name: len(getattr(block, name) or (None,)) for name in names}


def _sets(named: Mapping[str, Sequence[OptionAxes]]) -> int:
    return sum(math.prod(map(len, axes.values())) for sets in named.values() for axes in sets)

"""What all points have, and how many a sweep has: counted before they are written out."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from hpcbench.config.block import Block
from hpcbench.config.implementations import OptionAxes
from hpcbench.config.schema import Config
from hpcbench.errors import ConfigError
from hpcbench.kinds.kind import Planner

MAX_POINTS = 200_000
"""Larger products are refused before they are written out."""
COMMON_AXES = ("dtype", "backend", "device", "world_size", "mode", "warmup", "iterations", "check",
               "wakeup_s")
"""The axes that blocks of every kind have, but for ``env``."""


@dataclass(frozen=True, slots=True)
class Job:
    """What cases are planned for."""

    config: Config
    world_size: int


class Point(Protocol):
    """What a point of every kind says: where it runs and how it is measured."""

    @property
    def backend(self) -> str:
        """Return the backend's name."""

    @property
    def env(self) -> tuple[tuple[str, str], ...]:
        """Return the variables of the sweep, sorted by name."""

    @property
    def world_size(self) -> int:
        """Return the number of ranks."""

    @property
    def mode(self) -> str:
        """Return the timing mode."""

    @property
    def warmup(self) -> int:
        """Return the number of warm-ups."""

    @property
    def iterations(self) -> int | str:
        """Return the number of timed samples of a pass, or ``auto``."""

    @property
    def wakeup_s(self) -> float:
        """Return how often supervisors wake while the case runs, in seconds."""


def refuse_huge(blocks: Sequence[tuple[Planner, Block]], config: Config) -> None:
    """Raise ConfigError if the blocks have more than MAX_POINTS points together."""
    lengths = [_lengths(planner, block, config) for planner, block in blocks]
    total = sum(math.prod(axes.values()) for axes in lengths)
    if total <= MAX_POINTS:
        return
    largest = max(lengths, key=lambda axes: math.prod(axes.values()))
    axes = " x ".join(f"{name} {length}" for name, length in largest.items() if length > 1)
    raise ConfigError(f"benchmarks: the sweep has {total:,} points, more than {MAX_POINTS:,}; "
                      f"shorten an axis of the largest block: {axes}")


def _lengths(planner: Planner, block: Block, config: Config) -> dict[str, int]:
    variables = {f"env.{name}": len(values) for name, values in block.env.items()}
    return {**planner.lengths(block, config), **variables}


def listed_lengths(block: Block, names: Sequence[str]) -> dict[str, int]:
    """Return the lengths of these axes of a block; one that is not given has one value."""
    return {name: len(getattr(block, name) or (None,)) for name in names}


def number_of_sets(named: Mapping[str, Sequence[OptionAxes]]) -> int:
    """Return how many combinations of options named sets have together."""
    return sum(math.prod(map(len, axes.values())) for sets in named.values() for axes in sets)

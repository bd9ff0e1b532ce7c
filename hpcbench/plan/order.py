"""The order of cases in a job: few restarts of workers, and shuffled between them.

Cases that can share workers form a generation. Within it every pass has an order of its own. So
changes of the machine during the job (heat, other users) meet all cases alike.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby

from hpcbench.plan.case import Case

Environment = tuple[tuple[str, str], ...]
INLINE_BACKENDS = ("mpi", "mpi/direct")
"""Backends that must run in the MPI process itself; their cases come last, not isolated."""


@dataclass(frozen=True, slots=True)
class Generation:
    """Consecutive runnable cases that one set of workers can run, one after another."""

    env: Environment
    world_size: int
    inline: bool
    cases: tuple[Case, ...]


@dataclass(frozen=True, slots=True)
class Turn:
    """One pass of one launch; ``number`` counts the passes of all launches."""

    launch: int
    pass_index: int
    number: int


def turns(launches: int, passes: int) -> list[Turn]:
    """Return every pass of every launch, in order."""
    return [Turn(launch, pass_index, launch * passes + pass_index)
            for launch in range(launches) for pass_index in range(passes)]


def generations(cases: Iterable[Case]) -> list[Generation]:
    """Return the runnable cases, in order, cut where they cannot share workers."""
    runnable = (case for case in cases if case.skip is None)
    return [Generation(*key, cases=tuple(group)) for key, group in groupby(runnable, lambda case: (
        case.env, case.world_size, case.backend in INLINE_BACKENDS))]


def shuffled(cases: Sequence[Case], order: str, seed: int, pass_number: int) -> list[Case]:
    """Return the order in which a generation's cases are run in one pass.

    ``pass_number`` counts the passes of all launches. ``shuffled``: a permutation drawn from the
    seed for each pair of passes; the second pass of a pair runs it backwards, so that a steady
    drift cancels. Python's generator gives the same order everywhere (random.shuffle over
    Mersenne Twister).
    """
    if order == "planned":
        return list(cases)
    chosen = sorted(cases, key=lambda case: case.index)
    random.Random(f"{seed}/{pass_number // 2}").shuffle(chosen)
    return chosen[::-1] if pass_number % 2 else chosen


def ordered(cases: Sequence[Case]) -> list[Case]:
    """Return the cases grouped by environment, world size (largest first) and backend.

    Stable: within a group cases stay as configured. Inline backends come last.
    """
    envs = _first_seen(case.env for case in cases)
    backends = _first_seen(case.backend for case in cases)
    return sorted(cases, key=lambda case: (
        case.backend in INLINE_BACKENDS, envs[case.env], -case.world_size,
        backends[case.backend]))


def _first_seen(values: Iterable[object]) -> dict[object, int]:
    """Return value -> its place in the order of first appearance."""
    return {value: place for place, value in enumerate(dict.fromkeys(values))}

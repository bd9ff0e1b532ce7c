"""One line of the verdict, and texts that say which rank has what."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from hpcbench.units import rank_list


class State(str, Enum):
    """Whether a subject is as it should be; only ``fail`` makes the exit code 1."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"
    NOT_APPLICABLE = "n/a"


@dataclass(frozen=True, slots=True)
class Line:
    """The state of one subject and how to fix it; ``fix`` is "" where nothing is to do."""

    subject: str
    state: State
    found: str
    fix: str = ""


def ok(subject: str, found: str) -> Line:
    """Return a line about what is as it should be."""
    return Line(subject, State.OK, found)


def warn(subject: str, found: str, fix: str) -> Line:
    """Return a line about what costs speed or some cases, and how to fix it."""
    return Line(subject, State.WARN, found, fix)


def fail(subject: str, found: str, fix: str) -> Line:
    """Return a line about what stops a run or spoils its results, and how to fix it."""
    return Line(subject, State.FAIL, found, fix)


def not_applicable(subject: str, why: str) -> Line:
    """Return a line about what this job has not, and why."""
    return Line(subject, State.NOT_APPLICABLE, why)


def spread(groups: Mapping[Any, list[int]]) -> str:
    """Return ``8 cores on rank 0-2, 1 core on rank 3``; the value alone if all ranks have it."""
    if len(groups) == 1:
        return str(next(iter(groups)))
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())

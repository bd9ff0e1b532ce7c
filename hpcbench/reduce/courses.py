"""Readings over time: power and the use of cores, in as many points as a picture can show."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.trace.telemetry import Rows

MOST_POINTS = 240
LEAST_NS = 200_000_000
"""Kernels count the time of cores in ticks of up to 10 ms."""
_BUSY = ("user_ns", "system_ns")
_OTHERS = ("idle_ns", "steal_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Course:
    """One column of a table over time, of one device of one rank; both int64."""

    rank: int
    device: str
    time_ns: Rows
    values: Rows


@dataclass(frozen=True, slots=True)
class CoursePoint:
    """The mean of some neighbouring values, the least and the greatest, and their mean time."""

    time_ns: float
    mean: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class ShownCourse:
    """A line: whose it is, and its points in order of time."""

    rank: int
    device: str
    points: tuple[CoursePoint, ...]


Source = Callable[[str, str], Sequence[Course]]
"""Of a table and a column: its courses."""


def powers(courses: Source) -> Iterator[ShownCourse]:
    """Yield the power of each GPU, and of each CPU package by its energy, in W."""
    for course in courses("gpu", "power_mw"):
        yield _shown(course, course.time_ns, course.values / 1e3)
    for course in courses("energy", "energy_uj"):
        if course.device.startswith("package-") and "/" not in course.device:
            at = _apart(course.time_ns)
            seconds = np.diff(course.time_ns[at]) / 1e9
            yield _shown(course, course.time_ns[at][1:], np.diff(course.values[at]) / 1e6 / seconds)


def core_use(courses: Source) -> Iterator[ShownCourse]:
    """Yield which share of its cores' time each node was busy, hypervisors' time not counted."""
    columns = [courses("cpu", name) for name in (*_BUSY, *_OTHERS)]
    for same in zip(*columns, strict=True):
        first, at = same[0], _apart(same[0].time_ns)
        rises = np.stack([np.diff(course.values[at]) for course in same])
        busy, total = rises[:len(_BUSY)].sum(axis=0), rises.sum(axis=0)
        yield _shown(first, first.time_ns[at][1:], busy / np.maximum(total, 1))


def _apart(time_ns: Rows) -> list[int]:
    """Return which readings are LEAST_NS apart: a rise between closer ones is mostly rounding."""
    kept: list[int] = []
    for at, now_ns in enumerate(time_ns.tolist()):
        if not kept or now_ns - time_ns[kept[-1]] >= LEAST_NS:
            kept.append(at)
    return kept


def _shown(course: Course, time_ns: Rows, values: npt.NDArray[np.float64]) -> ShownCourse:
    groups = np.array_split(np.arange(len(values)), min(len(values), MOST_POINTS) or 1)
    return ShownCourse(course.rank, course.device, tuple(
        CoursePoint(float(time_ns[at].mean()), float(values[at].mean()), float(values[at].min()),
                    float(values[at].max())) for at in groups if at.size))

"""The timed loop: every sample is one call, started after a barrier of the control group."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from hpcbench.measure.progress import Phase, SharedProgress
from hpcbench.trace.schema import Flag


class Workload(Protocol):
    """What the loop needs of a workload; only ``run`` is timed."""

    name: str

    def prepare(self) -> None:
        """Restore inputs and wipe outputs."""

    def run(self) -> None:
        """Do the work once."""

    def check(self) -> object | None:
        """Return what is wrong with the output that was just timed, or None."""


class Stray(Protocol):
    """Another operation than the one that is planned."""

    name: str

    def run(self) -> None:
        """Do it once."""


class Device(Protocol):
    """Runs work to completion on a device."""

    def timed(self, run: Callable[[], None]) -> int:
        """Run, wait until complete, and return device ns or NO_DEVICE_TIME."""

    def synchronize(self) -> None:
        """Wait until all earlier work on the device is complete."""


@dataclass(frozen=True, slots=True)
class Schedule:
    """How often a case is run and which iterations are checked (counted from the first warm-up)."""

    warmup: int
    iterations: int
    checked: frozenset[int]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What lines the ranks up, tells the time, and what a fault-injection test does when.

    ``strays`` are called instead of the workload, in these iterations.
    """

    barrier: Callable[[], None]
    now_ns: Callable[[], int]
    faults: Mapping[int, Callable[[], None]]
    spoilers: Mapping[int, Callable[[], None]]
    strays: Mapping[int, Stray] = field(default_factory=dict)


def checked_iterations(warmup: int, iterations: int, validate: bool) -> frozenset[int]:
    """Return the first iteration of all, the first timed one and the last, if checked at all."""
    if not validate:
        return frozenset()
    return frozenset({0, warmup, warmup + iterations - 1})


def measure(
    workload: Workload, device: Device, progress: SharedProgress, schedule: Schedule,
    around: Surroundings,
) -> list[object]:
    """Run all warm-ups and iterations, stamping each; return what the checks found wrong.

    Inside the time: the call and its completion. Outside: restoring inputs, the barrier, checks.
    """
    wrong = []
    with _no_garbage_collection():
        for index in range(schedule.warmup + schedule.iterations):
            flags = Flag.WARMUP if index < schedule.warmup else Flag(0)
            progress.mark(Phase.PREPARE, index)
            called: Stray = around.strays.get(index, workload)
            workload.prepare()
            device.synchronize()
            progress.mark(Phase.BARRIER, index)
            around.barrier()
            progress.mark(Phase.RUN, index)
            if index in around.faults:
                around.faults[index]()
            if called is not workload:
                progress.stray(called.name, index)
            start_ns = around.now_ns()
            device_ns = device.timed(called.run)
            end_ns = around.now_ns()
            if index in around.spoilers:
                around.spoilers[index]()
            if index in schedule.checked:
                progress.mark(Phase.CHECK, index)
                flags |= Flag.CHECKED
                if (mismatch := workload.check()) is not None:
                    wrong.append(mismatch)
            progress.stamp(index, start_ns, end_ns, device_ns, int(flags))
    progress.mark(Phase.FINISH, schedule.warmup + schedule.iterations)
    around.barrier()  # no rank reports, and wakes its supervisor, while another still measures
    return wrong


@contextlib.contextmanager
def _no_garbage_collection() -> Iterator[None]:
    """Keep Python's collector out of the timed loop."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()

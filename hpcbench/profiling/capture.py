"""Profiled samples of one case on one rank, by torch.profiler.

They run in workers of their own after all measured samples, which no profiler can then change."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hpcbench.measurement.control import SharedProgress
from hpcbench.measurement.loop import Device, SampleSchedule, Surroundings, TimedWorkload, measure
from hpcbench.profiling.profiled_cases import CLOCK_MARK, SAMPLE_MARK

_ANCHORS = 8
"""Clock markers at either end: the narrowest counts, so one that is held up does no harm."""


@dataclass(frozen=True, slots=True)
class CapturedTrace:
    """The export of torch.profiler, and the stamps around the clock markers: (before, after) ns."""

    trace: dict[str, Any]
    anchors: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ProfiledSamples:
    """``samples`` profiled samples of ``batch`` calls, after ``warmup``: the profiler prepares in
    its last."""

    warmup: int
    batch: int
    samples: int
    cuda: bool


def capture(
    tool: str, workload: TimedWorkload, device: Device, progress: SharedProgress,
    wanted: ProfiledSamples, around: Surroundings,
) -> CapturedTrace:
    """Take profiled samples, recorded by ``tool``: by torch, or by nsys from outside."""
    if tool == "torch":
        return capture_by_torch(workload, device, progress, wanted, around)
    ranged = _Ranged(workload, wanted)
    measure(ranged, device, progress, SampleSchedule(max(wanted.warmup, 1), 1, validate=False),
            around)
    if wanted.cuda:
        torch.cuda.profiler.stop()
    return CapturedTrace({}, [])


def capture_by_torch(
    workload: TimedWorkload, device: Device, progress: SharedProgress, wanted: ProfiledSamples,
    around: Surroundings,
) -> CapturedTrace:
    """Take profiled samples; their rows are in ``progress`` as those of a case."""
    warmup = max(wanted.warmup, 1)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * wanted.cuda
    steps = schedule(wait=warmup - 1, warmup=1, active=wanted.samples)
    with profile(activities=activities, schedule=steps) as profiler:
        marked = _Marked(workload, profiler, around.now_ns, warmup, wanted.batch)
        measure(marked, device, progress, SampleSchedule(warmup, 1, validate=False), around)
        marked.anchor()
    return CapturedTrace(_exported(profiler), marked.anchors)


def _exported(profiler: torch.profiler.profile) -> dict[str, Any]:
    """Return the trace that the profiler writes; it can only write it to a file."""
    with tempfile.TemporaryDirectory(prefix="hpcbench-profile-") as folder:
        path = Path(folder) / "trace.json"
        profiler.export_chrome_trace(str(path))
        exported: dict[str, Any] = json.loads(path.read_text(errors="replace"))
    return exported


@dataclass(slots=True)
class _Ranged:
    """A workload that starts a CUDA profiler's range at its first timed sample, if on a GPU."""

    workload: TimedWorkload
    wanted: ProfiledSamples
    name: str = "profiled"
    _prepared: int = 0

    def prepare(self) -> None:
        """Restore inputs and wipe outputs; begin the range when the warm-ups are over."""
        if self._prepared == max(self.wanted.warmup, 1) and self.wanted.cuda:
            torch.cuda.profiler.start()
        self._prepared += 1
        self.workload.prepare()

    def run(self) -> None:
        if self.wanted.cuda:
            torch.cuda.nvtx.range_push(SAMPLE_MARK)
        for _ in range(self.wanted.batch):
            self.workload.run()
        if self.wanted.cuda:
            torch.cuda.nvtx.range_pop()

    def check(self) -> object | None:
        """Check nothing: the measured samples of the case were checked."""
        return None


@dataclass(slots=True)
class _Marked:
    """A workload with markers around its timed calls, which steps the profiler between them."""

    workload: TimedWorkload
    profiler: torch.profiler.profile
    now_ns: Callable[[], int]
    warmup: int
    batch: int
    name: str = "profiled"
    anchors: list[tuple[int, int]] = field(default_factory=list)
    _prepared: int = 0

    def prepare(self) -> None:
        """Move the profiler on, then restore inputs and wipe outputs."""
        if self._prepared:
            self.profiler.step()
        if self._prepared == self.warmup:
            self.anchor()
        self._prepared += 1
        self.workload.prepare()

    def run(self) -> None:
        with record_function(f"{SAMPLE_MARK} {self._prepared - 1 - self.warmup}"):
            for _ in range(self.batch):
                self.workload.run()

    def check(self) -> object | None:
        """Check nothing: the measured samples of the case were checked."""
        return None

    def anchor(self) -> None:
        """Let some markers begin between two stamps, to tie the profiler's clock to this one."""
        for _ in range(_ANCHORS):
            before_ns = self.now_ns()
            with record_function(CLOCK_MARK):
                after_ns = self.now_ns()
            self.anchors.append((before_ns, after_ns))

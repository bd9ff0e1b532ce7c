"""Profiled samples of one case on one rank, by torch.profiler or from outside by nsys.

They are samples like the measured ones, in workers of their own, after all that is measured. So
neither the profiler nor what it leaves behind in a process can change a measured sample.

The file of a rank is what torch.profiler exports (JSON in Chrome's trace event format, compressed),
with one key more, ``hpcbench``: a `RankProfile`. Viewers ignore keys that they do not know. Options
of nsys are those of its user guide; no test has run the real program: see docs/profile.md.
"""

from __future__ import annotations

import gzip
import json
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile, record_function, schedule

from hpcbench.errors import TraceError, UsageError
from hpcbench.measure.control import SharedProgress
from hpcbench.measure.loop import Device, SampleSchedule, Surroundings, TimedWorkload, measure
from hpcbench.texts import to_json
from hpcbench.trace.container import whole_file
from hpcbench.trace.schema import ARRIVAL, SAMPLE_COLUMNS, UNTIMED, Phases, Samples, from_values
from hpcbench.units import rank_list

_ANCHORS = 8
"""Clock markers at either end: the narrowest counts, so one that is held up does no harm."""


@dataclass(frozen=True, slots=True)
class Captured:
    """What torch.profiler exported, and the stamps around the clock markers: (before, after) ns."""

    trace: dict[str, Any]
    anchors: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class ProfiledSamples:
    """How many samples of how many calls are profiled, and what runs before them.

    The profiler prepares itself during the last of ``warmup`` samples, and sleeps in those before.
    """

    warmup: int
    batch: int
    samples: int
    cuda: bool


def capture(
    tool: str, workload: TimedWorkload, device: Device, progress: SharedProgress,
    wanted: ProfiledSamples, around: Surroundings,
) -> Captured:
    """Take profiled samples, recorded by ``tool``: by torch, or by nsys from outside.

    A CUDA profiler is told where they begin and end.
    """
    if tool == "torch":
        return capture_by_torch(workload, device, progress, wanted, around)
    ranged = _Ranged(workload, wanted)
    measure(ranged, device, progress, SampleSchedule(max(wanted.warmup, 1), 1, validate=False),
            around)
    if wanted.cuda:
        torch.cuda.profiler.stop()
    return Captured({}, [])


def capture_by_torch(
    workload: TimedWorkload, device: Device, progress: SharedProgress, wanted: ProfiledSamples,
    around: Surroundings,
) -> Captured:
    """Take profiled samples; their rows are in ``progress`` as those of a case are.

    The first profiler of a process takes seconds to start, in the last warm-up.
    """
    warmup = max(wanted.warmup, 1)
    activities = [ProfilerActivity.CPU] + [ProfilerActivity.CUDA] * wanted.cuda
    steps = schedule(wait=warmup - 1, warmup=1, active=wanted.samples)
    with profile(activities=activities, schedule=steps) as profiler:
        marked = _Marked(workload, profiler, around.now_ns, warmup, wanted.batch)
        measure(marked, device, progress, SampleSchedule(warmup, 1, validate=False), around)
        marked.anchor()
    return Captured(_exported(profiler), marked.anchors)


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
    """A workload whose timed calls stand in markers, and which moves the profiler on between them.

    A sample is one call of it, whatever the number of calls in it.
    """

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


PROFILE_FOLDER = "profile"
RANK_FILES = "ranks"
SAMPLE_MARK = "hpcbench sample"
"""Begin of the name of the marker around each profiled sample; its number follows, from 0."""
CLOCK_MARK = "hpcbench clock"
"""Name of the markers that begin between two stamps of our clock."""
_KEY = "hpcbench"


@dataclass(frozen=True, slots=True)
class RankProfile:
    """What one rank knows of its profiled samples beside their trace.

    Attributes:
        rows: list of [start_ns, end_ns, enqueue_ns, device_ns, flags], as in a trace.
        anchors: list of [before_ns, after_ns]: the n-th marker CLOCK_MARK began between the two.
    """

    case_id: str
    attempt: int
    rank: int
    device: str
    rows: Sequence[Sequence[int]]
    anchors: Sequence[Sequence[int]]


def rank_file(folder: Path, case_id: str, rank: int) -> Path:
    return folder / PROFILE_FOLDER / RANK_FILES / f"{case_id}.rank{rank:05d}.json.gz"


def write_rank_file(path: Path, trace: Mapping[str, Any], about: RankProfile) -> None:
    """Write a profiler's trace and what the rank knows of it. Raises FileError."""
    with whole_file(path, make_folder=True) as part, gzip.open(part, "wt", compresslevel=3) as out:
        out.write(to_json({**trace, _KEY: asdict(about)}))


def read_rank_file(path: Path) -> tuple[RankProfile, dict[str, Any]]:
    """Return both parts of a file. Raises TraceError if it is not such a file."""
    try:
        with gzip.open(path, "rt") as stream:
            trace: dict[str, Any] = json.load(stream)
        return from_values(RankProfile, trace.pop(_KEY)), trace
    except (OSError, EOFError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise TraceError(f"{path}: no profile of a rank can be read from it: {error}") from error


@dataclass(frozen=True, slots=True)
class ProfileNote:
    """Whether a case was profiled and ``why``; the ``problem`` is "" if its profile is there."""

    case_id: str
    is_wanted: bool
    why: str
    problem: str = ""

    def with_problem(self, problem: str) -> ProfileNote:
        return replace(self, problem=problem)

    def left_out(self, why: str) -> ProfileNote:
        return replace(self, is_wanted=False, why=why)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


NSYS = "nsys"
INSTEAD_OF_NSYS = "take torch's profiler with --set profiling.tool=torch"


def nsys_is_installed() -> bool:
    return shutil.which(NSYS) is not None


def nsys_missing(ranks: list[int]) -> str:
    return f"nsys is not on the PATH of rank {rank_list(ranks)}; {INSTEAD_OF_NSYS}"


def require_nsys() -> None:
    """Raise UsageError if this machine lacks it, for commands that were asked for it."""
    if not nsys_is_installed():
        raise UsageError(
            f"profiling.tool: nsys is not on the PATH; install it, or {INSTEAD_OF_NSYS}")


def nsys_words(folder: Path, rank: int, *, cuda: bool) -> tuple[str, ...]:
    """Return what a rank puts in front of its workers' template.

    Workers are forks without exec. On GPUs each case is a range of its own, and a report of its
    own; without any, one report covers the whole turn. ``%p`` is the process that nsys starts.
    """
    report = folder / PROFILE_FOLDER / RANK_FILES / f"nsys-rank{rank:05d}-%p"
    ranges = ("--capture-range=cudaProfilerApi", "--capture-range-end=repeat") if cuda else ()
    return (NSYS, "profile", f"--output={report}", "--trace-fork-before-exec=true",
            f"--trace={'cuda,nvtx,osrt' if cuda else 'osrt'}", "--sample=none", "--cpuctxsw=none",
            *ranges)


def nsys_reports(folder: Path, rank: int) -> list[Path]:
    return sorted((folder / PROFILE_FOLDER / RANK_FILES).glob(f"nsys-rank{rank:05d}-*"))


STALL_SHARE = 0.1
"""Where only cases are profiled whose ranks wait for each other, these differ by this share of the
sample's time or more (docs/method.md): a choice, twice the 5 % from which the reducer calls a
change of a median one. It needs no common clock: a rank that waits in a sample, or in a phase of
it, is longer in it than the rank that it waits for."""
WHOLE = "sample"
_START, _END, _FLAGS = (SAMPLE_COLUMNS.index(name) for name in ("start_ns", "end_ns", "flags"))


def medians_ns(rows: Samples, phases: Phases) -> dict[str, float]:
    """Return one rank's medians over its timed samples in ns: of the sample, and of each phase.

    ``rows`` are (sample, SAMPLE_COLUMNS); empty without a timed sample.
    """
    timed = (rows[:, _FLAGS] & UNTIMED) == 0
    if not timed.any():
        return {}
    lasting = {name: values for name, values in phases.items()
               if not name.startswith(ARRIVAL) and len(values) == len(rows)}
    return {WHOLE: float(np.median((rows[:, _END] - rows[:, _START])[timed])),
            **{name: float(np.median(values[timed])) for name, values in lasting.items()}}


def stall(of_ranks: Sequence[Mapping[str, float]]) -> tuple[float, str]:
    """Return the largest difference between ranks over the longest sample, and in what it is.

    ``of_ranks`` are `medians_ns` of each rank; (0, "") where a rank has none.
    """
    if not all(WHOLE in medians for medians in of_ranks):
        return 0.0, ""
    longest_ns = max(medians[WHOLE] for medians in of_ranks)
    common = [name for name in of_ranks[0] if all(name in medians for medians in of_ranks)]
    shares = {name: (max(medians[name] for medians in of_ranks)
                     - min(medians[name] for medians in of_ranks)) / longest_ns
              for name in common} if longest_ns > 0 else {WHOLE: 0.0}
    name = max(shares, key=lambda name: shares[name])
    return shares[name], name


def profile_reason(share: float, name: str) -> str:
    where = "in the sample" if name == WHOLE else f"in phase {name}"
    return (f"the ranks' medians {where} differ by {share:.0%} of the sample; "
            f"cases from {STALL_SHARE:.0%} are profiled")

"""The reduced results of one run, as read from and written to ``results.h5``.

Definitions (docs/method.md): what the time of a sample is, its fold, depends on the timing mode;
statistics are over the samples that count (`reduce.stack.Use`), of all passes and launches; the
others are kept; a case that is not ``ok`` has none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.topology import Topology
from hpcbench.statistics.steady import FEWEST_RUNS, LEAST_CHANGE, Mode
from hpcbench.trace.columns import Rows

QUALITIES = {
    "clock_unreliable": "the clock error exceeds 5 % of the time; fold local_max is used",
    "late_starts": "late starts (over 10 us in 20 % of the samples) move the median",
    "fragile": "outliers move the median beyond its interval",
    "two_modes": "the times have two modes around the median",
    "ci_unreliable": "confidence interval unreliable: too few samples, autocorrelated samples, "
                     "passes that differ, or drift",
    "repeats": "launches in one process (mpi, --inline): no interval over launches",
    "ramp": "the first samples of a pass are not in steady state, and count (fixed iterations)",
    "trend": "a trend within a pass moves the median beyond its interval",
    "change_point": "a level shift of 5 % or more within a pass moves the median",
    "unsteady": "no steady state within the first half of a pass",
}
"""Word -> what it says of a case's samples (docs/method.md)."""


@dataclass(frozen=True, slots=True)
class Clocks:
    """How the ranks' clocks were compared; a summary of the tables in ``/clock``.

    The ranks of a node share one of the ``n_clocks``. ``n_syncs`` is 0 where there is one clock
    only. ``bound_s`` is the largest bound of a rank's offset at a synchronisation,
    ``check_error_s`` the largest error that the checks after them measured, and ``drift_ppm`` the
    largest |slope| of a rank's clock against rank 0's, in parts per million.
    """

    n_clocks: int
    n_syncs: int
    bound_s: float | None
    check_error_s: float | None
    drift_ppm: float | None


FEWEST_FOR_DRIFT, LEAST_DRIFT = FEWEST_RUNS, LEAST_CHANGE


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """One run of the canary: the times of its samples, folded by ``local_max``.

    ``since_start_s`` counts from the first run, on rank 0's clock. ``ci_low_s`` and ``ci_high_s``
    are the 95 % confidence interval of the median, None where n < 6.
    """

    launch: int
    pass_index: int
    since_start_s: float
    n: int
    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None


@dataclass(frozen=True, slots=True)
class Canary:
    """One small case that was measured again and again: how the machine changed meanwhile.

    ``runs`` were ok on all ranks, ``n_not_ok`` others were not. ``drift`` is the change over all
    runs, relative to their median, and ``tau`` how steadily they rise or fall
    (`statistics.steady.Drift`); both are None where runs are too few to tell. ``quality`` is
    ("drifting",) if the drift is significant.
    """

    label: str
    runs: tuple[CanaryRun, ...]
    n_not_ok: int
    drift: float | None
    quality: tuple[str, ...]
    tau: float | None


CANARY_QUALITIES = {"drifting": "the canary case drifts steadily by more than 3 %"}
"""Word -> what it says of the whole run (docs/method.md)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """What a pass of a case used, from the reading before it to the one after it; None: not read.

    Sums over ranks or nodes are of a mean pass. With set-up, warm-ups and checks, and of counters
    of a node with all that its other processes did.

    Attributes:
        passes: how many passes readings bracket, of the table that has most.
        window_s: how long such a bracket is.
        energy_j, mean_power_w: of what ``energy_of`` names: ``cpu`` (packages and memory by RAPL),
            ``gpu``, or ``cpu and gpu``.
        clock_low_mhz, clock_high_mhz: the least and the greatest clock that was read, of
            ``clock_of``: ``gpu`` or ``cpu``.
        throttled, throttled_by: whether heat or a limit of power lowered a clock, and which.
        cpu_s, wait_s: CPU time of the workers, and time that their main threads waited for a core.
        minor_faults, major_faults: page faults of the workers.
        steal_share: share of the time of the nodes' cores that a hypervisor gave to others.
        sent_bytes, sent_by_node: sent by all interfaces, and by those of each node.
        loopback_bytes: what of it stayed on its node.
        dropped: packets dropped by interfaces.
        nvlink_bytes: sent over NVLinks.
        computed_bytes: what all ranks send in as many calls, by the formulas of the case's kind.
        xids, ecc_errors: last XID of GPUs that have one, and memory errors of GPUs.
        spans_ns: begin and end of each pass of the newest attempt, on the global clock.
    """

    passes: int
    window_s: float | None = None
    energy_j: float | None = None
    energy_of: str = ""
    mean_power_w: float | None = None
    clock_low_mhz: float | None = None
    clock_high_mhz: float | None = None
    clock_of: str = ""
    throttled: bool | None = None
    throttled_by: tuple[str, ...] = ()
    cpu_s: float | None = None
    wait_s: float | None = None
    minor_faults: float | None = None
    major_faults: float | None = None
    steal_share: float | None = None
    sent_bytes: float | None = None
    sent_by_node: tuple[float, ...] = ()
    loopback_bytes: float | None = None
    dropped: float | None = None
    nvlink_bytes: float | None = None
    computed_bytes: float | None = None
    xids: tuple[int, ...] = ()
    ecc_errors: float | None = None
    spans_ns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RankTold:
    """What one rank read in one attempt, and why not the rest (`trace.telemetry.Told`)."""

    rank: int
    attempt: int
    rate_hz: float
    devices: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    missing: Mapping[str, str] = field(default_factory=dict)


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


SCHEMA_VERSION = 2
FOLDS = {
    "global": "from the first rank's start to the last rank's end, on the global clock",
    "local_max": "the longest of the ranks' own times from start to end",
    "per_call": "the longest of the ranks' own times from start to end, divided by the calls",
}
"""Fold -> what the time of one sample is, in words (docs/method.md)."""


@dataclass(frozen=True, slots=True)
class Statistics:
    """Order statistics in seconds over the times of ``n`` samples, folded over ranks.

    Percentiles are None where n is too small to hold them (docs/method.md). ``ci_low_s`` and
    ``ci_high_s`` are the 95 % confidence interval of the median. Of a single launch it is one of
    samples, None where n < 6; ``ci_reliable`` is False where they depend on one another too much
    for it. Of several launches it is one of their medians, None of 2 to 5. ``launch_low_s`` and
    ``launch_high_s`` are the least and the greatest of these, None of a single launch.
    """

    n: int
    min_s: float
    p5_s: float | None
    p25_s: float
    median_s: float
    p75_s: float
    p95_s: float | None
    p99_s: float | None
    max_s: float
    ci_low_s: float | None = None
    ci_high_s: float | None = None
    ci_reliable: bool = False
    launch_low_s: float | None = None
    launch_high_s: float | None = None


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a training step, over the samples that count.

    ``share`` is of the time that all ranks together spent in their steps; ``median_s`` is each
    rank's; ``slowest_rank`` is most often the longest in it and
    ``quickest_rank`` the shortest, each in that share of the samples; None of a single rank.
    """

    name: str
    share: float
    median_s: tuple[float, ...]
    slowest_rank: int | None
    slowest_share: float | None
    quickest_rank: int | None
    quickest_share: float | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """When the ranks had their own gradients of one bucket, over the samples that count.

    ``median_s`` is each rank's, from the first rank's begin of the step. ``last_rank`` is most
    often the last, in that share of the samples; then it is ``behind_s`` behind the median of the
    others, in the median. ``pass_median_s`` has ``median_s`` of each pass.
    """

    bucket: int
    median_s: tuple[float, ...]
    last_rank: int
    last_share: float
    behind_s: float
    pass_median_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the time of training steps went: medians of each rank over the samples that count.

    ``step_s`` is end - start on the rank's own clock. ``other_s`` is what of it is in no phase;
    ``other_share`` is the same of all steps of all ranks together. ``phases`` are in the order of a
    step. ``pass_step_s`` has ``step_s`` of each planned pass, None where it was not run.
    ``arrivals`` are those at the buckets in which several ranks exchange gradients.
    """

    ranks: tuple[int, ...]
    step_s: tuple[float, ...]
    other_s: tuple[float, ...]
    other_share: float
    phases: tuple[Phase, ...]
    pass_step_s: tuple[tuple[float, ...] | None, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """How the samples of an ok case came about, and what they say beside the time of its fold.

    Attributes:
        fold: key of FOLDS that the statistics are of.
        calls: calls of one sample.
        n_warmup, n_ramp, n_late, n_outlier: samples that are planned warm-ups; before the steady
            state; that a rank started late; above median + 10 MAD (the last two count).
        unflagged_n, unflagged_median_s: the same median of counted samples without any flag: late,
            outlier, and where all timed samples count, before the steady state or surplus.
        quality: words of qualities.QUALITIES that apply, most serious first.
        stop_reasons: why each pass ended, in order of launch and pass.
        first_call_s: longest first call of any rank on a group that had just been opened.
        communicator_s: longest opening of the group under test on any rank.
        last_in_s: median over samples of last end - last start on the global clock.
        local_max_s: median over samples of the maximum over ranks of end - start.
        imbalance_s: median over samples of last start - first start on the global clock.
        enqueue_s, device_s: medians over samples of the maximum over ranks.
        clock_bound_s: how far the ranks' global times may be apart at most; 0 on one clock.
        quickest_rank, quickest_share: the rank whose own end - start is most often the shortest
            (the others waited for it), and in which share of the samples: a vote, no test.
        launch_medians_s: the median of each launch.
        n_surplus: samples that are more than the shortest pass has.
        pass_medians_s: the median of each planned pass of each launch, in order; None where it was
            not run.
        steps: where the time of training steps went, None of other cases.
        all_count: whether all timed samples count, those of n_ramp and n_surplus, too.
        unflagged: all statistics of the samples without a flag. None where all have one.
        ci_unit: what the interval's order statistics are of: ``samples``, ``passes`` or
            ``launches``, that is the medians of passes or of launches.
        ci_rank: the interval goes from the smallest to the largest of this rank among these.
        launch_level: probability with which the range of the launches' medians holds the median
            over launches; None where there is no such range.
        late_start: the rank that starts later than any other; None of one rank, or one clock a
            rank that nobody compared.
        modes: the two modes that the median lies between; nothing where there is one mode.
        link_bytes_per_s: the busbw that the declared links allow; None where none is declared.
    """

    fold: str
    calls: int
    n_warmup: int
    n_ramp: int
    n_late: int
    n_outlier: int
    unflagged_n: int
    unflagged_median_s: float | None
    quality: tuple[str, ...]
    stop_reasons: tuple[str, ...]
    first_call_s: float | None
    communicator_s: float | None
    last_in_s: float | None
    local_max_s: float | None
    imbalance_s: float | None
    enqueue_s: float | None
    device_s: float | None
    clock_bound_s: float | None
    quickest_rank: int | None
    quickest_share: float | None
    launch_medians_s: tuple[float, ...]
    n_surplus: int = 0
    pass_medians_s: tuple[float | None, ...] = ()
    steps: Steps | None = None
    all_count: bool = False
    unflagged: Statistics | None = None
    ci_unit: str = "samples"
    ci_rank: int | None = None
    launch_level: float | None = None
    late_start: Comparison | None = None
    modes: tuple[Mode, ...] = ()
    link_bytes_per_s: float | None = None

    @property
    def repeats(self) -> bool:
        """Return whether its launches ran in the same processes, so that they count as one."""
        return "repeats" in self.quality


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The one outcome of one planned case over all passes and member ranks.

    ``n_wrong`` is the sum over ranks, None where nothing was checked. ``detail`` maps what the
    ranks recorded beside the samples (first wrong element, stderr, stacks), by rank as text.
    ``library`` has algorithm, protocol, channels and transport as libraries reported on any rank
    in any pass (`trace.library_choices.LibraryChoices.to_json`), None where nothing ran.
    ``memory`` is what each rank, as text, held of what at most in any pass: bytes by name, and
    ``peak_of``, what the peak is of. None where it was not looked at.
    ``trace_missing``: it failed only because a rank's trace is not there, which may still come.
    ``usage`` is what it used of the machine, None where nothing was read.
    """

    case: Case
    status: str
    reason: str
    blamed_rank: int | None
    device: str
    n_wrong: int | None
    statistics: Statistics | None
    detail: Mapping[str, Any]
    timing: Timing | None = None
    library: Mapping[str, str] | None = None
    memory: Mapping[str, Mapping[str, int | str]] | None = None
    trace_missing: bool = False
    usage: Usage | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """One finding of the reducer's checks. ``code`` is stable (docs/checks.md).

    ``scope``: ``run`` (results cannot be trusted as one run), ``rank`` (a trace was left out),
    ``case`` (a case was rejected, or contradicts another), ``note`` (nothing was left out).
    """

    code: str
    scope: str
    message: str


@dataclass(frozen=True, slots=True)
class RunInfo:
    """What identifies and describes the run.

    ``environment`` is that of the first rank present, ``environment_hash`` what stays the same in
    equal runs (`reduce.environments.environment_hash`), None where it was not recorded. ``faults``
    were injected on purpose, in any attempt at it.
    """

    name: str
    run_id: str
    plan_hash: str
    world_size: int
    ranks_present: tuple[int, ...]
    nodes: tuple[str, ...]
    started_at: str
    versions: Mapping[str, str]
    environment: Mapping[str, Any]
    hpcbench_version: str
    environment_hash: str | None = None
    faults: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """Raw stamps of one case, stacked: int64 arrays of shape (rank, sample).

    Samples of all launches and passes follow one another; ``launch`` and ``pass_index``, both
    (sample,), say which. ``flags`` are `hpcbench.trace.schema.Flag` bits; ``enqueue_ns`` and
    ``device_ns`` are -1 where not measured. All stamps are of the ranks' own clocks. ``phases`` are
    those of training steps in ns, each (rank, sample), in the order of a step, and the arrivals at
    buckets (`trace.schema.ARRIVAL`). ``use`` (sample,) has a `reduce.stack.Use` each; None where it
    is not known yet. ``topology`` says where ranks ran.
    """

    ranks: tuple[int, ...]
    launch: npt.NDArray[np.int64]
    pass_index: npt.NDArray[np.int64]
    start_ns: npt.NDArray[np.int64]
    end_ns: npt.NDArray[np.int64]
    enqueue_ns: npt.NDArray[np.int64]
    device_ns: npt.NDArray[np.int64]
    flags: npt.NDArray[np.int64]
    phases: Mapping[str, npt.NDArray[np.int64]] = field(default_factory=dict)
    use: npt.NDArray[np.int64] | None = None
    topology: Topology = Topology()


class SampleSource(Protocol):
    """Where a results file's raw samples are read from, one case at a time."""

    def samples(self, case_id: str) -> CaseSamples | None:
        """Return the stacked samples of a case, or None if none were recorded."""

    def courses(self, table: str, column: str) -> Sequence[Course]:
        """Return a column of telemetry over time, by rank and device; nothing if not read."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything in ``results.h5`` but the samples, which are read case by case.

    ``canary`` and ``clocks`` are None where nothing was recorded of them. ``derived`` maps each
    installed kind to its records by case id (`reduce.kind_facts.Deriver`). ``missing_kinds`` maps
    others to the reason why they have no records. ``told`` is what ranks could read of the machine,
    ``topology`` where they ran.
    """

    run: RunInfo
    plan: Plan
    cases: tuple[CaseResult, ...]
    findings: tuple[Finding, ...]
    canary: Canary | None = None
    clocks: Clocks | None = None
    derived: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing_kinds: Mapping[str, str] = field(default_factory=dict)
    told: tuple[RankTold, ...] = ()
    topology: Topology = Topology()

    def record_of(self, item: CaseResult) -> Any | None:
        """Return the derived record of a case; None if its kind derived none, or is not installed.
        """
        return self.derived.get(item.case.kind, {}).get(item.case.case_id)

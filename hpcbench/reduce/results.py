"""The reduced results of one run, as read from and written to ``results.h5``.

Definitions (docs/method.md): what the time of a sample is, its fold, depends on the timing mode;
statistics are over the samples that count (`reduce.use.Use`), of all passes and launches; the
others are kept; a case that is not ``ok`` has none.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case, Plan
from hpcbench.reduce.canary_runs import Canary
from hpcbench.reduce.clock_summary import Clocks
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.courses import Course
from hpcbench.reduce.topology import Topology
from hpcbench.reduce.usage import RankTold, Usage
from hpcbench.statistics.modes import Mode

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
    ``arrivals`` are those at the buckets in which several ranks exchange gradients. Both are empty
    in results of older versions.
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
            not run. Empty in results written before there were any.
        steps: where the time of training steps went, None of other cases.
        all_count: whether all timed samples count, those of n_ramp and n_surplus, too.
        unflagged: all statistics of the samples without a flag. None where all have one, and in
            results of older versions.
        ci_unit: what the interval's order statistics are of: ``samples``, ``passes`` or
            ``launches``, that is the medians of passes or of launches.
        ci_rank: the interval goes from the smallest to the largest of this rank among these.
        launch_level: probability with which the range of the launches' medians holds the median
            over launches; None where there is no such range.
        late_start: the rank that starts later than any other; None of one rank, or one clock a
            rank that nobody compared, and in older results.
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
    buckets (`trace.schema.ARRIVAL`). ``use`` (sample,) has a `reduce.use.Use` each; None where it
    is not known, as in results of older versions. ``topology`` says where ranks ran.
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
    schema_version: int = SCHEMA_VERSION


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
    installed kind to its records by case id (`kinds.kind.Deriver`). ``missing_kinds`` maps other
    kinds to the reason why they have no records. ``told`` is what ranks could read of the machine,
    ``topology`` where they ran; both are empty in older files. ``schema_version`` is the file's.
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
    schema_version: int = SCHEMA_VERSION

    def record_of(self, item: CaseResult) -> Any | None:
        """Return the derived record of a case; None if its kind derived none, or is not installed.
        """
        return self.derived.get(item.case.kind, {}).get(item.case.case_id)

"""The reduced results of one run, as in ``results.h5``. Statistics are over the samples that count
(`reduce.stack.Use`) of all passes and launches; a case that is not ``ok`` has none. Fields of
`Statistics`, `Timing` and `Usage` that are annotated with a text are columns of ``/cases``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, field
from typing import Annotated, Any, Protocol

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import PROGRAM_KIND, Case, Plan
from hpcbench.records import dataclass
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.metric import KindColumns
from hpcbench.reduce.topology import Topology
from hpcbench.statistics.steady import FEWEST_RUNS, LEAST_CHANGE, Mode
from hpcbench.trace.columns import Rows
from hpcbench.units import plural

QUALITIES = {
    "clock_unreliable": "the clock error exceeds 5 % of the time, which is the longest of the "
                        "ranks' own (fold local_max)",
    "missed_lateness": "ranks entered 10 % or more off their planned delay in over 20 % of the "
                       "samples",
    "late_starts": "late starts (over 10 us in 20 % of the samples) move the median",
    "fragile": "the median depends on late samples and outliers; repeat on an idle machine",
    "two_modes": "the times have two modes around the median",
    "ci_unreliable": "interval unreliable: too few or autocorrelated samples, drift, or passes "
                     "that differ",
    "repeats": "launches in one process (mpi, --inline): no interval over launches",
    "ramp": "the first samples of a pass are not in steady state, and count (fixed iterations)",
    "trend": "a trend within a pass moves the median beyond its interval",
    "change_point": "a level shift of 5 % or more within a pass moves the median",
    "unsteady": "no steady state within the first half of a pass",
    "cut": "rows or final lines of its table are missing from the log",
    "imported": "times that another program printed: no interval",
}
"""Word -> its meaning for a case's samples (docs/method.md)."""

IMPORTED, CUT = "imported", "cut"


@dataclass(frozen=True, slots=True)
class Clocks:
    """Summary of ``/clock``. The ranks of a node share one of ``n_clocks``; ``n_syncs`` is 0 with
    one clock. ``bound_s`` is the largest bound of an offset, ``check_error_s`` the largest error
    that checks measured, ``drift_ppm`` the largest |slope| of a rank's clock against rank 0's."""

    n_clocks: int
    n_syncs: int
    bound_s: float | None
    check_error_s: float | None
    drift_ppm: float | None


FEWEST_FOR_DRIFT, LEAST_DRIFT = FEWEST_RUNS, LEAST_CHANGE


@dataclass(frozen=True, slots=True)
class CanaryRun:
    """One run of the canary, folded by ``local_max``; ``since_start_s`` is on rank 0's clock, from
    the first run. The 95 % interval of the median is None where n < 6."""

    launch: int
    pass_index: int
    since_start_s: float
    n: int
    median_s: float
    ci_low_s: float | None
    ci_high_s: float | None


@dataclass(frozen=True, slots=True)
class Canary:
    """A small case that was measured repeatedly: how the machine changed meanwhile. ``runs`` were
    ok on all ranks, ``n_not_ok`` were not. ``drift`` is the change relative to the median, ``tau``
    Kendall's (`statistics.steady.Drift`), None for too few runs. ``quality`` is ("drifting",) if
    significant."""

    label: str
    runs: tuple[CanaryRun, ...]
    n_not_ok: int
    drift: float | None
    quality: tuple[str, ...]
    tau: float | None

    @property
    def is_drifting(self) -> bool:
        return "drifting" in self.quality


CANARY_QUALITIES = {"drifting": "the canary case drifts steadily by more than 3 %"}
"""Word -> its meaning for the whole run (docs/method.md)."""


@dataclass(frozen=True, slots=True)
class Usage:
    """Resources that a pass of a case used, by readings before and after it; None: not read.
    Sums over ranks or nodes are of a mean pass, set-up, warm-ups and checks included; counters of a
    node count all its processes. ``passes`` are those that readings bracket, of the table with
    most, for ``window_s`` each. ``energy_of``: ``cpu`` (RAPL packages and memory), ``gpu``, or
    ``cpu and gpu``. ``wait_s``: main threads waited for a core. ``loopback_bytes`` stayed on their
    node, ``dropped`` counts packets, ``xids`` are the last of each GPU, ``spans_ns`` begin and end
    of passes of the newest attempt, on the global clock."""

    passes: int
    window_s: float | None = None
    energy_j: Annotated[
        float | None, "energy of a mean pass (energy_of in usage)"] = None
    energy_of: str = ""
    mean_power_w: Annotated[float | None, "mean power of the same"] = None
    clock_low_mhz: Annotated[float | None, "least and greatest clock of GPUs, else cores"] = None
    clock_high_mhz: Annotated[float | None, "least and greatest clock of GPUs, else cores"] = None
    clock_of: str = ""
    throttled: Annotated[
        bool | None, "1 if heat or a limit of power lowered a clock, else 0; -1 unknown"] = None
    throttled_by: tuple[str, ...] = ()
    cpu_s: Annotated[float | None, "CPU time of all workers in a mean pass"] = None
    wait_s: float | None = None
    minor_faults: float | None = None
    major_faults: float | None = None
    steal_share: Annotated[
        float | None, "share of the nodes' core time that a hypervisor took"] = None
    sent_bytes: Annotated[
        float | None, "sent by all interfaces of its nodes in a mean pass"] = None
    sent_by_node: tuple[float, ...] = ()
    loopback_bytes: float | None = None
    dropped: float | None = None
    nvlink_bytes: float | None = None
    computed_bytes: Annotated[
        float | None, "what all ranks send in a mean pass by formulas, with unrecorded calls"
    ] = None
    xids: tuple[int, ...] = ()
    ecc_errors: float | None = None
    spans_ns: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class RankTelemetry:
    """The devices that one rank read in one attempt, and why not others (`TelemetryReport`)."""

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
class TimeSeries:
    """One column of a table over time, of one device of one rank; both int64."""

    rank: int
    device: str
    time_ns: Rows
    values: Rows


@dataclass(frozen=True, slots=True)
class SeriesPoint:
    """Mean, least and greatest of some neighbouring values, at their mean time."""

    time_ns: float
    mean: float
    least: float
    greatest: float


@dataclass(frozen=True, slots=True)
class ShownSeries:
    """A line: its rank and device, and points in order of time."""

    rank: int
    device: str
    points: tuple[SeriesPoint, ...]


Source = Callable[[str, str], Sequence[TimeSeries]]
"""(table, column) -> the values of each device over time."""


def powers(time_series: Source) -> Iterator[ShownSeries]:
    """Yield the power of each GPU, and of each CPU package by its energy, in W."""
    for series in time_series("gpu", "power_mw"):
        yield _shown(series, series.time_ns, series.values / 1e3)
    for series in time_series("energy", "energy_uj"):
        if series.device.startswith("package-") and "/" not in series.device:
            at = _spaced(series.time_ns)
            seconds = np.diff(series.time_ns[at]) / 1e9
            yield _shown(series, series.time_ns[at][1:], np.diff(series.values[at]) / 1e6 / seconds)


def core_use(time_series: Source) -> Iterator[ShownSeries]:
    """Yield the share of its cores' time that each node was busy; stolen time is not busy."""
    columns = [time_series("cpu", name) for name in (*_BUSY, *_OTHERS)]
    for of_core in zip(*columns, strict=True):
        first, at = of_core[0], _spaced(of_core[0].time_ns)
        rises = np.stack([np.diff(series.values[at]) for series in of_core])
        busy, total = rises[:len(_BUSY)].sum(axis=0), rises.sum(axis=0)
        yield _shown(first, first.time_ns[at][1:], busy / np.maximum(total, 1))


def _spaced(time_ns: Rows) -> list[int]:
    """Return indices of readings LEAST_NS apart: rises between closer ones are mostly rounding."""
    kept: list[int] = []
    for at, now_ns in enumerate(time_ns.tolist()):
        if not kept or now_ns - time_ns[kept[-1]] >= LEAST_NS:
            kept.append(at)
    return kept


def _shown(series: TimeSeries, time_ns: Rows, values: npt.NDArray[np.float64]) -> ShownSeries:
    groups = np.array_split(np.arange(len(values)), min(len(values), MOST_POINTS) or 1)
    return ShownSeries(series.rank, series.device, tuple(
        SeriesPoint(float(time_ns[at].mean()), float(values[at].mean()), float(values[at].min()),
                    float(values[at].max())) for at in groups if at.size))


SCHEMA_VERSION = 2
PROCESSES = "processes"
"""Key of a plan's config where programs measured themselves: case id -> the process of each launch.
"""
FOLDS = {
    "global": "from the first rank's start to the last rank's end, on the global clock",
    "local_max": "the longest of the ranks' own times from start to end",
    "per_call": "the longest of the ranks' own times from start to end, divided by the calls",
}
"""Fold -> the meaning of a sample's time (docs/method.md)."""
PRINTED_FOLD = "printed"
"""The fold of imported rows."""
PRINTED_MEDIAN_FOLD = "printed_median"
"""The fold of imported rows of hpcbench's own tables."""
OPERATION_FOLD = "operation"
"""The fold of imported single operations."""
EVERY_FOLD = {
    **FOLDS, PRINTED_FOLD: "the mean time of a call, as another program printed it",
    PRINTED_MEDIAN_FOLD: "the median time of a call, as hpcbench printed it",
    OPERATION_FOLD: "the longest time of an operation that a rank printed, with its waiting"}


def fold_text(fold: str) -> str:
    """Return the meaning of a sample's time in words, also for imported rows."""
    return EVERY_FOLD[fold]


@dataclass(frozen=True, slots=True)
class Statistics:
    """Order statistics in seconds over the times of ``n`` samples, folded over ranks.

    Percentiles are None where n is too small to hold them (docs/method.md). The interval of a
    single launch is one of samples, None where n < 6; ``ci_reliable`` is False where they depend on
    one another too much for it. That of several launches is of their medians, None for 2 to 5."""

    n: int
    min_s: Annotated[float, "shortest time of a sample"]
    p5_s: Annotated[float | None, "percentiles of the samples"]
    p25_s: Annotated[float, "percentiles of the samples"]
    median_s: Annotated[
        float, "median time of the timed samples, folded over ranks"]
    p75_s: Annotated[float, "percentiles of the samples"]
    p95_s: Annotated[float | None, "percentiles of the samples"]
    p99_s: Annotated[float | None, "percentiles of the samples"]
    max_s: Annotated[float, "longest time of a sample"]
    ci_low_s: Annotated[float | None, "ends of the 95 % interval of the median"] = None
    ci_high_s: Annotated[float | None, "ends of the 95 % interval of the median"] = None
    ci_reliable: bool = False
    launch_low_s: Annotated[float | None, "least and greatest of a launch; NaN of one"] = None
    launch_high_s: Annotated[float | None, "least and greatest of a launch; NaN of one"] = None

    @property
    def reliable_interval(self) -> tuple[float, float] | None:
        """Return the ends of the median's interval in seconds, None without a reliable one."""
        if not self.ci_reliable or self.ci_low_s is None or self.ci_high_s is None:
            return None
        return self.ci_low_s, self.ci_high_s


@dataclass(frozen=True, slots=True)
class Phase:
    """One phase of a training step, over the samples that count. ``share`` is of all ranks' time in
    steps, ``median_s`` each rank's. ``slowest_rank`` and ``quickest_rank`` most often take longest
    and shortest, in that share of samples; None of a single rank."""

    name: str
    share: float
    median_s: tuple[float, ...]
    slowest_rank: int | None
    slowest_share: float | None
    quickest_rank: int | None
    quickest_share: float | None


@dataclass(frozen=True, slots=True)
class Arrival:
    """When ranks had their own gradients of a bucket: ``median_s`` of each rank from the first
    rank's begin of the step. ``last_rank`` is most often the last, in that share of samples, then
    ``behind_s`` behind the median of the others. ``pass_median_s`` is that of each pass."""

    bucket: int
    median_s: tuple[float, ...]
    last_rank: int
    last_share: float
    behind_s: float
    pass_median_s: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True)
class Steps:
    """Where the time of training steps went: medians of each rank over counted samples. ``step_s``
    is end - start on the rank's clock, ``other_s`` its part in no phase, ``other_share`` that of
    all ranks together. ``pass_step_s`` has each planned pass, None where it was not run.
    ``arrivals`` are those at buckets that several ranks exchange."""

    ranks: tuple[int, ...]
    step_s: tuple[float, ...]
    other_s: tuple[float, ...]
    other_share: float
    phases: tuple[Phase, ...]
    pass_step_s: tuple[tuple[float, ...] | None, ...] = ()
    arrivals: tuple[Arrival, ...] = ()


@dataclass(frozen=True, slots=True)
class LateArrivals:
    """The entry of ranks that enter late on purpose, and the same for the case in which they enter
    together. ``own_by_rank_s`` are each rank's medians over the counted samples that it entered
    punctually, ``late_by_rank_s`` over those that it entered late; None where there are none."""

    lateness_s: Annotated[
        float | None, "median achieved delay of the rank that enters last on purpose"] = None
    missed_share: Annotated[
        float | None, "share of samples entered 10 % of the delay off"] = None
    last_in_low_s: Annotated[float | None, "ends of its interval"] = None
    last_in_high_s: Annotated[float | None, "ends of its interval"] = None
    own_entry_s: Annotated[
        float | None, "median time from own entry, mean of punctual ranks"] = None
    own_entry_low_s: Annotated[float | None, "ends of its interval"] = None
    own_entry_high_s: Annotated[float | None, "ends of its interval"] = None
    own_entry_together_s: Annotated[
        float | None, "own_entry_s of the same ranks where all enter together"] = None
    absorbed_share: Annotated[
        float | None, "1 - (own_entry_s - own_entry_together_s) / lateness_s"] = None
    absorbed_low: Annotated[float | None, "ends of its interval"] = None
    absorbed_high: Annotated[float | None, "ends of its interval"] = None
    own_by_rank_s: tuple[float | None, ...] = ()
    late_by_rank_s: tuple[float | None, ...] = ()


@dataclass(frozen=True, slots=True)
class Timing:
    """The origin of an ok case's samples, and further results beside the time of its fold.

    ``fold`` is a key of FOLDS, ``quality`` words of QUALITIES, most serious first. Late samples and
    outliers count. ``unflagged`` are all statistics of the samples without a flag, None where all
    have one. First call and opening are the longest of any rank; ``enqueue_s`` and ``device_s``
    medians of the maximum over ranks. The others waited for the quickest rank: a vote, no test.
    ``pass_medians_s`` has each planned pass of each launch, None where it was not run. ``steps``
    divides the time of training steps. ``late_start`` is the rank that starts later than any
    other; None for one rank, or where clocks were not compared. ``modes`` are the two that the
    median lies between, if there are two. ``arrivals`` are of cases with late ranks, and of the
    same without."""

    fold: Annotated[
        str, "how ranks make a time of a sample: global, local_max or per_call (docs/method.md)"]
    calls: Annotated[int, "calls of a sample"]
    n_warmup: Annotated[int, "warm-up samples"]
    n_ramp: Annotated[int, "samples before the steady state"]
    n_late: Annotated[int, "counted samples that a rank began late"]
    n_outlier: Annotated[int, "counted samples above the median + 10 MAD"]
    unflagged_n: Annotated[int, "samples without any flag"]
    unflagged_median_s: Annotated[float | None, "median over the samples without any flag"]
    quality: Annotated[
        tuple[str, ...], "flags of the case, separated by spaces (docs/method.md)"]
    stop_reasons: Annotated[
        tuple[str, ...], "why each pass took no further sample, separated by spaces"]
    first_call_s: Annotated[float | None, "time of the first call in the run"]
    communicator_s: Annotated[float | None, "time to open the group"]
    last_in_s: Annotated[float | None, "median of last end - last start"]
    local_max_s: Annotated[float | None, "median of the longest local time"]
    imbalance_s: Annotated[float | None, "median of last start - first start"]
    enqueue_s: Annotated[float | None, "host's median time to issue the work"]
    device_s: Annotated[float | None, "median time between events of the device"]
    clock_bound_s: Annotated[
        float | None, "largest error of the global clock; 0 of one clock"]
    quickest_rank: Annotated[int | None, "rank that most often has the shortest call"]
    quickest_share: Annotated[float | None, "share of the samples in which that rank has it"]
    launch_medians_s: tuple[float, ...]
    n_surplus: Annotated[int, "samples beyond the shortest pass"] = 0
    n_samples: Annotated[int, "samples taken, with warm-ups and calls for checks"] = 0
    n_checked: Annotated[int | None, "samples whose results were compared; -1 if unknown"] = None
    pass_medians_s: tuple[float | None, ...] = ()
    steps: Steps | None = None
    all_count: Annotated[bool, "1 if all timed samples count, else 0"] = False
    unflagged: Statistics | None = None
    ci_unit: Annotated[
        str, "what the interval is of: samples, passes or launches"
    ] = "samples"
    ci_rank: Annotated[int | None, "l: the interval goes from the l-th smallest to the l-th "
                       "largest value"] = None
    launch_level: Annotated[float | None, "probability that launch_low_s to launch_high_s holds "
                            "the launches' median; NaN of one launch"] = None
    late_start: Comparison | None = None
    modes: tuple[Mode, ...] = ()
    link_bytes_per_s: Annotated[float | None, "bus bandwidth that the declared links allow; NaN "
                                "where none is declared", "apart"] = None
    arrivals: LateArrivals | None = None

    @property
    def repeats(self) -> bool:
        return "repeats" in self.quality

    @property
    def n_launches(self) -> int:
        """Return the launches that count each for itself."""
        return 1 if self.repeats else max(1, len(self.launch_medians_s))

    @property
    def is_imported(self) -> bool:
        return IMPORTED in self.quality


@dataclass(frozen=True, slots=True)
class CaseResult:
    """The outcome of a planned case over all passes and ranks. ``n_wrong`` is summed over ranks,
    None where unchecked. ``detail`` maps a rank, as text, to its record beside samples;
    ``memory`` to its highest bytes by name and ``peak_of``. ``library`` is `LibraryChoices.to_json`
    of all ranks, None where nothing ran. ``trace_missing``: it failed only because a trace is not
    there, but may still come."""

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
    """A finding with a stable code (docs/checks.md). ``scope``: ``run`` (results cannot be trusted
    as one run), ``rank`` (a trace was left out), ``case`` (a case was rejected, or contradicts
    another), ``note`` (nothing was left out). ``share`` of a core that a rank, or the worst of all,
    lost before the sweep (HB143, HB144)."""

    code: str
    scope: str
    message: str
    share: float | None = None

    def stored(self) -> dict[str, Any]:
        """Return JSON values, without what most findings have not."""
        return {name: value for name, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, slots=True)
class RunInfo:
    """The identity of the run. ``environment`` is that of the first rank present,
    ``environment_hash`` the same in equal runs, None if unknown. ``faults`` were injected in any
    attempt. ``imported`` names the programs that printed the numbers, if they were not measured
    here."""

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
    imported: tuple[str, ...] = ()

    @property
    def ranks_a_node(self) -> int:
        """Return the ranks of a node where they are spread evenly, else of the fullest."""
        return math.ceil(self.world_size / max(len(self.nodes), 1))

    @property
    def injected(self) -> str:
        """Return what every report of a run with injected faults says; "" of another."""
        return f"faults were injected: {'; '.join(self.faults)}" if self.faults else ""


@dataclass(frozen=True, slots=True)
class CaseSamples:
    """Raw stamps of one case: int64 (rank, sample), on the ranks' own clocks. Launches and passes
    follow one another; ``launch`` and ``pass_index`` are (sample,). ``flags`` are `Flag` bits;
    ``enqueue_ns`` and ``device_ns`` -1 where not measured. ``phases`` in the order of a step,
    arrivals included (`trace.schema.ARRIVAL`). ``use`` (sample,) are `reduce.stack.Use`, None if
    not known yet."""

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
    """The raw samples of a results file."""

    def samples(self, case_id: str) -> CaseSamples | None:
        """Return the samples of a case, None if none were recorded."""

    def time_series(self, table: str, column: str) -> Sequence[TimeSeries]:
        """Return a column of telemetry over time, by rank and device; nothing if not read."""


@dataclass(frozen=True, slots=True)
class Results:
    """Everything in ``results.h5`` but the samples. ``derived`` maps each installed kind to records
    by case id, ``missing_kinds`` others to the reason; ``kind_columns`` are what /cases has of all,
    those in a file of kinds that are not installed included. ``telemetry``: the devices of the
    machine that ranks could read."""

    run: RunInfo
    plan: Plan
    cases: tuple[CaseResult, ...]
    findings: tuple[Finding, ...]
    canary: Canary | None = None
    clocks: Clocks | None = None
    derived: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    missing_kinds: Mapping[str, str] = field(default_factory=dict)
    kind_columns: KindColumns = field(default_factory=KindColumns)
    telemetry: tuple[RankTelemetry, ...] = ()
    topology: Topology = Topology()

    @property
    def lasted_s(self) -> float | None:
        """Return the seconds from the first pass to the last of the newest attempt, if known."""
        spans = [span for item in self.cases if item.usage for span in item.usage.spans_ns]
        return (max(end for _, end in spans) - min(begin for begin, _ in spans)) / 1e9 if (
            spans) else None

    @property
    def passes_run(self) -> tuple[int, int, int] | None:
        """Return the fewest and the most passes of a case, and those planned, over all launches;
        None where every timed case has all."""
        planned = self.plan.launches * self.plan.passes
        counts = [sum(one is not None for one in item.timing.pass_medians_s) for item in self.cases
                  if item.timing and len(item.timing.pass_medians_s) == planned]
        return (min(counts), max(counts), planned) if min(counts, default=planned) < planned else (
            None)

    @property
    def lacking_kinds(self) -> Mapping[str, str]:
        """Return `missing_kinds` that an installed package would bring."""
        return {kind: reason for kind, reason in self.missing_kinds.items()
                if kind != PROGRAM_KIND}

    def jobs_of(self, item: CaseResult) -> int:
        """Return how many jobs the launches of a case are of: one, or of a program as many as there
        are processes of its first rank that saved it (`PROCESSES`)."""
        return len({*self.plan.config.get(PROCESSES, {}).get(item.case.case_id, ())}) or 1

    @property
    def cut(self) -> str:
        """Return how many cases are of a log that ends early, as text; "" of another."""
        n_cut = sum(item.timing is not None and CUT in item.timing.quality for item in self.cases)
        return f"{plural(n_cut, 'case')} of a log that is cut or torn" if n_cut else ""

    def record_of(self, item: CaseResult) -> Any | None:
        return self.derived.get(item.case.kind, {}).get(item.case.case_id)

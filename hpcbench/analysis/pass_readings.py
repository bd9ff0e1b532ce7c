"""What was read of the machine in each pass of a case, beside the time of that pass.

Passes are matched with readings by the global clock. Counters count from the reading before a pass
to the one after it, so set-up, warm-ups and checks are in them. Clocks are those within it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from hpcbench.analysis.answer import Run
from hpcbench.reduce.courses import Course
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.reduce.usage_sums import WIDEST

MOST_READ = 500_000
"""Ranks times passes: of more, nothing is looked at, as it would take minutes and memory."""
Spans = npt.NDArray[np.int64]
Values = npt.NDArray[np.float64]
CLOCKS = (("GPU", "gpu", "sm_mhz", 1.0), ("CPU", "frequency", "mean_khz", 1e-3))
"""What has a clock, where it stands, and MHz of its unit; the first that was read counts."""


@dataclass(frozen=True, slots=True)
class PassReadings:
    """Times of a case's passes (pass,), and what was read in each; NaN where it was not.

    Attributes:
        spans_ns: begin and end, (pass, 2).
        clocks: median clock of each rank that read any, in MHz, (rank, pass).
        waits: share of a pass in which each rank's worker was ready and had no core.
        steal, others: share of all cores' time of each node that a hypervisor gave away, and that
            other processes than the workers used, (node, pass).
    """

    item: CaseResult
    times_s: Values
    spans_ns: Spans
    clocks: Values
    waits: Values
    steal: Values
    others: Values


@dataclass(frozen=True, slots=True)
class Read:
    """What was read in the passes of a run's cases; ``missing`` says why some of it was not.

    ``clock_of`` is what the clocks are of, ``celsius`` the highest temperature of a GPU.
    ``wait_ranks``, ``clock_ranks``: who the rows are of; ``nodes``: ranks that read for theirs.
    """

    cases: tuple[PassReadings, ...] = ()
    clock_of: str = ""
    wait_ranks: tuple[int, ...] = ()
    clock_ranks: tuple[int, ...] = ()
    nodes: tuple[int, ...] = ()
    celsius: int | None = None
    missing: Mapping[str, str] = field(default_factory=dict)


def readings(run: Run) -> Read:
    """Return what was read in the passes of a run whose readings can be matched with them."""
    results = run.results
    if why := _why_not(results):
        return Read(missing=dict.fromkeys(("clocks", "waits", "cores"), why))
    clock_of, clocks, scale = next(((name, found, scale) for name, table, column, scale in CLOCKS
                                    if (found := run.samples.courses(table, column))),
                                   ("", (), 1.0))
    waits = run.samples.courses("process", "wait_ns")
    cores = [run.samples.courses("cpu", f"{name}_ns")
             for name in ("user", "system", "idle", "steal")]
    used = run.samples.courses("process", "cpu_ns")
    node_of = {one.rank: one.hostname for one in results.topology.ranks}
    of_nodes, in_mhz = _Cores(cores, used, node_of), [(one, scale) for one in clocks]
    cases = tuple(_of_case(item, in_mhz, waits, of_nodes)
                  for item in results.cases if _is_matched(item))
    told = {name: why for one in results.told for name, why in one.missing.items()}
    hottest = [int(one.values.max()) for one in run.samples.courses("gpu", "celsius")]
    return Read(cases, clock_of, _ranks(waits), _ranks(clocks), _ranks(cores[0]),
                max(hottest, default=None), {
        **({} if clocks else {"clocks": "; ".join(
            f"{name}: {told[table]}" for name, table, *_ in CLOCKS if table in told)}),
        **({} if waits else {"waits": told.get("process.wait_ns", "")}),
        **({} if cores[0] else {"cores": told.get("cpu", "")})})


def _why_not(results: Results) -> str:
    if not results.told:
        return "nothing was read of the machine (telemetry)"
    matched = [item for item in results.cases if _is_matched(item)]
    if not matched:
        return "readings cannot be matched with passes: the run was resumed, or no pass was read"
    read = sum(len(_known_s(item)) * item.case.world_size for item in matched)
    return (f"there are {read} passes of ranks, and of more than {MOST_READ} readings are not "
            "looked at") if read > MOST_READ else ""


def _known_s(item: CaseResult) -> list[float]:
    return [time_s for time_s in item.timing.pass_medians_s if time_s] if item.timing else []


def _is_matched(item: CaseResult) -> bool:
    """Return whether the case has a time for each span, so that they are of the same passes."""
    return item.usage is not None and 0 < len(item.usage.spans_ns) == len(_known_s(item))


def _ranks(courses: Sequence[Course]) -> tuple[int, ...]:
    return tuple(dict.fromkeys(course.rank for course in courses))


@dataclass(frozen=True, slots=True)
class _Cores:
    """Courses of nodes' cores (user, system, idle, steal), of workers, and the node of each rank.
    """

    cores: Sequence[Sequence[Course]]
    used: Sequence[Course]
    node_of: Mapping[int, str]

    def shares(self, spans_ns: Spans) -> tuple[Values, Values]:
        """Return the share that was stolen, and the one of other processes, each (node, pass)."""
        stolen, others = [], []
        for user, system, idle, steal in zip(*self.cores, strict=True):
            risen = [rises(course, spans_ns)[0] for course in (user, system, idle, steal)]
            total = np.where(sum(risen) > 0, sum(risen), np.nan)
            here = [course for course in self.used
                    if self.node_of.get(course.rank) == self.node_of.get(user.rank)]
            own = sum((rises(course, spans_ns)[0] for course in here), np.zeros(len(spans_ns)))
            stolen.append(risen[3] / total)
            others.append(np.maximum(risen[0] + risen[1] - own, 0) / total)
        return _stacked(stolen, spans_ns), _stacked(others, spans_ns)


def _of_case(
    item: CaseResult, clocks: Sequence[tuple[Course, float]], waits: Sequence[Course],
    cores: _Cores,
) -> PassReadings:
    assert item.usage is not None
    spans_ns = np.array(item.usage.spans_ns, dtype=np.int64)
    order = np.argsort(spans_ns[:, 0], kind="stable")
    spans_ns = spans_ns[order]
    waited = []
    for course in waits:
        risen, bracket_ns = rises(course, spans_ns)
        waited.append(np.clip(risen / bracket_ns, 0, 0.99))
    found = [medians_within(course, spans_ns) * scale for course, scale in clocks]
    steal, others = cores.shares(spans_ns)
    return PassReadings(item, np.array(_known_s(item)), spans_ns,
                        _stacked(found, spans_ns), _stacked(waited, spans_ns), steal, others)


def _stacked(rows: Sequence[Values], spans_ns: Spans) -> Values:
    return np.stack(rows) if rows else np.empty((0, len(spans_ns)))


def rises(course: Course, spans_ns: Spans) -> tuple[Values, Values]:
    """Return by how much a counter rises around each span, and the ns between the two readings.

    Both are NaN where no reading is before or behind the span, where they are too far apart, and
    where the counter began anew.
    """
    first = np.searchsorted(course.time_ns, spans_ns[:, 0], side="right") - 1
    last = np.searchsorted(course.time_ns, spans_ns[:, 1], side="left")
    inside = (first >= 0) & (last < course.time_ns.size)
    first, last = np.where(inside, first, 0), np.where(inside, last, 0)
    apart = (course.time_ns[last] - course.time_ns[first]).astype(np.float64)
    risen = (course.values[last] - course.values[first]).astype(np.float64)
    good = inside & (apart > 0) & (risen >= 0) & (
        apart <= WIDEST * (spans_ns[:, 1] - spans_ns[:, 0]))
    return np.where(good, risen, np.nan), np.where(good, apart, np.nan)


def medians_within(course: Course, spans_ns: Spans) -> Values:
    """Return the median of a value of the moment within each span; NaN where none was read.

    A device that idles while a pass is set up has another clock then: most of a pass counts.
    """
    first = np.searchsorted(course.time_ns, spans_ns[:, 0], side="left")
    end = np.searchsorted(course.time_ns, spans_ns[:, 1], side="right")
    return np.array([np.median(course.values[begin:stop]) if stop > begin else np.nan
                     for begin, stop in zip(first, end, strict=True)])

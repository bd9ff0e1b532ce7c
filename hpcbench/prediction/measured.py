"""What predictions rest on: the timed cases of several files, with what a call of each demands."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from hpcbench.answers.answer import Run
from hpcbench.plan.case import Case
from hpcbench.prediction.laws import LEAST_ERROR, Points
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork, F, IsolatedCall, RepeatedCall, StepDemand, facts_of
from hpcbench.reduce.results import CaseResult
from hpcbench.units import grouped

_TO_STANDARD_ERROR = 3.92
"""The 95 % interval of a median is so many standard errors wide, if it is normal."""
_UNKNOWN_ERROR = 0.05
"""The relative standard error of a median without an interval."""
_TO_DEVIATION = 1.349
"""The quartiles of a normal distribution are so many deviations apart."""
Key = tuple[object, ...]


class JobShape(NamedTuple):
    """Ranks of a job, and how many are on a node; they lie in order."""

    ranks: int
    on_node: int

    def sharing(self, call: RepeatedCall) -> tuple[int, int]:
        """Return how many ranks of a group are on each of several nodes, 0 where one has all, and
        how many groups of a node call at once."""
        inside = (call.ranks - 1) * call.stride < self.on_node
        own = call.ranks if inside else max(self.on_node // call.stride, 1)
        return 0 if inside else own, max(min(self.on_node, self.ranks) // own, 1)


@dataclass(frozen=True, slots=True)
class TimedCase:
    """A measured case: ``key`` is equal where only the number of ranks differs. ``error`` is the
    relative standard error of the median, ``spread`` the relative deviation of its samples.
    ``isolated``: it is one collective by itself."""

    run: Run
    item: CaseResult
    demand: StepDemand
    place: JobShape
    key: tuple[Any, ...]
    work: CallWork | None
    isolated: bool
    time_s: float
    error: float
    spread: float

    @property
    def ranks(self) -> int:
        return self.item.case.world_size

    @property
    def reliable_interval(self) -> tuple[float, float] | None:
        return self.item.statistics.reliable_interval if self.item.statistics else None

    @property
    def task(self) -> Key:
        return self.work.task if self.work else ()

    @property
    def is_base(self) -> bool:
        """Return whether it is one rank by itself, the base of all ways of its task."""
        return bool(self.work and self.work.alone and self.ranks == 1)


def key_of(case: Case, device: str) -> Key:
    """Return what is the same for a case on any number of ranks."""
    return (case.kind, case.backend, device.partition(":")[0], *_settings(case))


def _settings(case: Case, without: Collection[str] = ()) -> tuple[Any, ...]:
    """Return environment, mode, calls of a sample, CUDA graph, and axes with their values."""
    axes = case.workload.choice().axes.items()
    return (case.env, case.mode, case.batch, case.cuda_graph, tuple(sorted(
        (name, repr(value)) for name, value in axes if name not in without)))


def timed_cases(runs: Sequence[Run]) -> tuple[list[TimedCase], Mapping[str, int]]:
    """Return the cases with times, and why others are left out -> how many."""
    made = [_timed(run, item) for run in runs for item in run.results.cases]
    return [one for one in made if isinstance(one, TimedCase)], Counter(
        one for one in made if isinstance(one, str))


def _timed(run: Run, item: CaseResult) -> TimedCase | str:
    case, stats = item.case, item.statistics
    if stats is None or not stats.median_s > 0:
        return f"without a time ({item.status})"
    if run.results.run.injected:
        return "with injected faults"
    demand = next(iter(run.facts(item, StepDemand)), None)
    if demand is None:
        return f"of {case.workload.name}, which no law describes so"
    if demand.missing:
        return f"of {case.workload.name}: {demand.missing}"
    ends = stats.reliable_interval
    error = (ends[1] - ends[0]) / stats.median_s / _TO_STANDARD_ERROR if ends else _UNKNOWN_ERROR
    return TimedCase(
        run, item, demand, JobShape(case.world_size, run.results.run.ranks_a_node),
        key_of(case, item.device or case.device), next(iter(run.facts(item, CallWork)), None),
        bool(run.facts(item, IsolatedCall)), stats.median_s,
        max(error, LEAST_ERROR), (stats.p75_s - stats.p25_s) / stats.median_s / _TO_DEVIATION)


def planned_fact(case: Case, wanted: type[F]) -> F | None:
    """Return the fact of a class of a case that did not run, which is of its plan alone."""
    planned = CaseResult(case, "not_run", "", None, case.device, None, None, {})
    return next(iter(facts_of(planned, {}, wanted)), None)


class SeriesKey(NamedTuple):
    """Isolated calls that one law describes: ``on_node`` ranks of a group on each of several nodes,
    or 0 within one, and groups of a node ``at_once``. ``rest`` is what else may differ, as the
    mode, and axes as the dtype."""

    collective: str
    backend: str
    device: str
    on_node: int
    at_once: int
    rest: tuple[Any, ...]


def series_of(cases: Sequence[TimedCase]) -> Mapping[SeriesKey, list[TimedCase]]:
    return grouped(
        (series_key(case.item.case, case.demand.calls[0], case.place, case.key[2]), case)
        for case in cases if case.isolated and case.demand.calls[0].ranks > 1)


_OF_SIZE = ("requested_bytes", "groups", "group_stride")


def series_key(case: Case, call: RepeatedCall, place: JobShape, device: str) -> SeriesKey:
    """Return the key of the law of a case that is one collective."""
    return SeriesKey(call.collective, case.backend, device,
                     *place.sharing(call), _settings(case, _OF_SIZE))


def points_of(cases: Sequence[TimedCase]) -> Points:
    """Return the points of a series; equal ones of several files stay apart."""
    rows = np.array([(case.demand.calls[0].ranks, case.demand.calls[0].size_bytes, case.time_s,
                      case.error) for case in cases], float)
    return Points(*rows.T)


def steps_of(cases: Sequence[TimedCase]) -> Mapping[Key, tuple[TimedCase, ...]]:
    """Return the steps of each key, and where they have a task the single rank that is its base."""
    found = {}
    for key, own in grouped((case.key, case) for case in cases if not case.isolated).items():
        bases = [case for case in cases if case.is_base and case.task == own[0].task
                 and case.key[2] == own[0].key[2] and case.key[3] == own[0].key[3]]
        has_base = any(case.ranks == 1 for case in own)
        found[key] = (*own, *([] if has_base else bases[:1]))
    return found

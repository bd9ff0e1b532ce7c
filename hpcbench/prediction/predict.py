"""Predictions of the cases of a sweep for a number of ranks that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import MappingProxyType
from typing import Any

from hpcbench.answers.answer import Run
from hpcbench.answers.compare_inputs import other_differences
from hpcbench.answers.verdict import doubts_of
from hpcbench.config.load import check_config, load_config, replace_names
from hpcbench.config.schema import Config
from hpcbench.errors import UsageError
from hpcbench.gen_config import Sweep
from hpcbench.operations.traffic import TrafficRecord
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.prediction.laws import ALGORITHMS, CallLaw, Refused
from hpcbench.prediction.measured import (
    JobShape,
    Key,
    SeriesKey,
    TimedCase,
    key_of,
    planned_fact,
    points_of,
    series_key,
    series_of,
    steps_of,
    timed_cases,
)
from hpcbench.prediction.recorded import recorded_demands
from hpcbench.prediction.steps import (
    Laws,
    StepLaw,
    StepTime,
    Term,
    Using,
    of_another_shape,
    step_time,
)
from hpcbench.prediction.sweeps import blocks_with, carrying, next_ranks, on_all_ranks, planned_on
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork, IsolatedCall, StepDemand
from hpcbench.statistics.order import Interval
from hpcbench.units import HOUR_S, grouped, plural

MOST_NAMED = 3
"""Differences of files that are named."""
WIDEST = 4.0
"""An interval that ends above so many times its value says nothing."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A case, or recorded calls (``case`` None), on ``ranks`` ranks of ``on_node`` a node.

    ``step`` is its time, None where ``refused`` says why there is none. ``measured_ranks`` are
    those of the cases it rests on (``known``). ``efficiency``: work per second and rank over that
    of the fewest of these; ``per_second``: units of work a second; ``memory_bytes``: of a rank,
    planned; ``cost``: of an hour x devices, for 10^6 units, where a price is known."""

    label: str
    kind: str
    ranks: int
    on_node: int
    measured_ranks: tuple[int, ...] = ()
    step: StepTime | None = None
    refused: str = ""
    unit: str = ""
    efficiency: Interval | None = None
    per_second: Interval | None = None
    tokens_per_second: Interval | None = None
    memory_bytes: int = 0
    cost: Interval | None = None
    case: Case | None = None
    known: tuple[TimedCase, ...] = ()

    @property
    def skip(self) -> str:
        return (self.case and self.case.skip) or ""


@dataclass(frozen=True, slots=True)
class Predictions:
    """All predictions, the laws they rest on, and why measured cases were left out -> how many."""

    cases: tuple[Predicted, ...]
    laws: Mapping[SeriesKey, CallLaw]
    left_out: Mapping[str, int]
    notes: tuple[str, ...] = ()

    def noting(self, note: str) -> Predictions:
        return replace(self, notes=(*self.notes, note))

    def on(self, ranks: Sequence[int]) -> Predictions:
        """Return those for some numbers of ranks. Raises UsageError if none can run there."""
        cases = tuple(one for one in self.cases if one.ranks in ranks)
        if all(one.skip for one in cases):
            raise UsageError(f"the plan for {', '.join(map(str, ranks))} ranks has no case to "
                             f"predict{f': {cases[-1].skip}' if cases else ''}")
        return replace(self, cases=cases)


@dataclass(frozen=True)
class Basis:
    """All that predictions rest on: timed cases, the laws of isolated calls, and of steps."""

    cases: tuple[TimedCase, ...]
    laws: Laws

    @cached_property
    def steps(self) -> Mapping[Key, StepLaw]:
        return {key: StepLaw(own, self.laws, Using(
            own[0].item.case.backend, own[0].key[2], own[0].item.case.workload.dtype,
            own[0].item.case.env))
            for key, own in steps_of(self.cases).items()}

    @cached_property
    def shapes(self) -> Sequence[tuple[StepLaw, Key, Mapping[str, Any]]]:
        """Return each law of steps, what must be the same for it, and its axes that must be."""
        return [(law, _way(one.item.case, one.work, one.key[2]), _computing(one.item.case))
                for law in self.steps.values() for one in law.cases[:1]]

    @cached_property
    def calls(self) -> Mapping[Key, Sequence[TimedCase]]:
        """Return the isolated calls of each key; one rank has none."""
        return grouped((case.key, case) for case in self.cases if case.isolated and case.ranks > 1)

    @property
    def on_node(self) -> int:
        return max(case.place.on_node for case in self.cases)

    def device_of(self, case: Case) -> str:
        """Return the device of a case: its own, or that on which those of its backend ran."""
        if case.device != "auto":
            return case.device
        return next((one.key[2] for one in self.cases if one.item.case.kind == case.kind
                     and one.item.case.backend == case.backend), case.device)

    def key_of(self, case: Case) -> Key:
        return key_of(case, self.device_of(case))


def basis_of(cases: Sequence[TimedCase]) -> Basis:
    return Basis(tuple(cases), Laws({
        key: CallLaw(key.collective, points_of(same))
        for key, same in series_of(cases).items() if key.collective in ALGORITHMS}))


def _basis(runs: Sequence[Run]) -> tuple[Basis, Mapping[str, int]]:
    """Return what predictions rest on, and what is left out. Raises UsageError."""
    cases, left = timed_cases(runs)
    if not cases:
        raise UsageError("nothing to predict from: no case that a law describes has a time")
    return basis_of(cases), left


def predict(
    sweeps: Sequence[Config], runs: Sequence[Run], world_sizes: Sequence[int],
    only: Sequence[str] = (), *, price: float | None = None, on_node: int | None = None,
) -> Predictions:
    """Return the predictions of sweeps from runs, for each number of ranks, ``on_node`` of them on
    a node, or as many as most nodes had.

    Raises UsageError if nothing is measured, or no case has the words of ``only``."""
    (basis, left), made = _basis(runs), []
    for ranks in world_sizes:
        place = JobShape(ranks, min(ranks, on_node or basis.on_node))
        made += [_predicted(case, place, basis, price)
                 for case in planned_cases(sweeps, basis, ranks)
                 if all(word.lower() in case.label.lower() for word in only)]
    if not made and only:
        raise UsageError(f"--case {' '.join(only)}: no planned case has all these words")
    return Predictions(tuple(made), basis.laws.laws, left, tuple(
        _notes(runs, world_sizes, basis))).on(world_sizes)


def predict_unmeasured(
    sweeps: Sequence[Config], cases: Sequence[TimedCase], ranks: int,
) -> list[Predicted]:
    """Return the predictions of the planned cases that were not measured on so many ranks."""
    basis = basis_of(cases)
    place = JobShape(ranks, min(ranks, basis.on_node))
    known = {case.key for case in cases if case.ranks == ranks}
    return [_predicted(case, place, basis, None)
            for case in planned_cases(sweeps, basis, ranks)
            if not case.skip and basis.key_of(case) not in known]


def planned_cases(sweeps: Sequence[Config], basis: Basis, ranks: int) -> Sequence[Case]:
    """Return the cases of sweeps on so many ranks, each once, skipped ones if no sweep runs them.
    """
    found: dict[Key, Case] = {}
    for case in (case for config in sweeps for case in make_plan(config, ranks).cases):
        key = basis.key_of(case)
        if case.world_size == ranks and (key not in found or found[key].skip):
            found[key] = case
    return [*found.values()]


def sweeps_of(
    runs: Sequence[Run], names: Mapping[str, Sequence[str]] = MappingProxyType({}),
    sweep: Path | None = None,
) -> list[Config]:
    """Return a sweep, or those of runs, with other names of models or strategies in their blocks.

    Raises UsageError where no run has one, as imported results."""
    if sweep:
        return [load_config(sweep, [*names.items()])]
    configs = []
    for run in runs:
        if not run.results.plan.config.get("benchmarks"):
            continue
        raw = on_all_ranks(run.results.plan.config)
        for key, given in names.items():
            raw[key] = [*given]
            replace_names(raw, key)
        configs.append(check_config(raw, run.path))
    if not configs:
        raise UsageError("these results have no sweep, as imported ones: give --sweep FILE")
    return configs


def next_sweep(configs: Sequence[Config], found: Sequence[Predicted]) -> Sweep:
    """Return the blocks of sweeps with predicted cases, for the number of ranks that halves the
    intervals of those on most ranks, or those of a law. Raises UsageError, ConfigError."""
    raws = [on_all_ranks(config.model_dump(
        mode="json", by_alias=True, exclude_unset=True, exclude_none=True)) for config in configs]
    found = [one for one in found if not one.skip]
    place = max(JobShape(one.ranks, one.on_node) for one in found)
    labels = {one.label for one in found}
    blocks = [block for raw in raws for block in blocks_with(labels, raw, place.ranks)]
    content = {**raws[0], "benchmarks": [
        block for at, block in enumerate(blocks) if block not in blocks[:at]]}
    known = [{case.ranks for case in one.known if case.ranks > 1 and (
        case.ranks > case.place.on_node) == (place.ranks > place.on_node)} for one in found]
    counts = [*min(filter(None, known), key=len, default=())]
    return carrying(content, planned_on(content, place.ranks), place, counts and next_ranks(
        counts, place.ranks), "Made by predict --next, to halve the intervals: run it")


def _predicted(case: Case, place: JobShape, basis: Basis, price: float | None) -> Predicted:
    key = basis.key_of(case)
    known = basis.steps[key].cases if key in basis.steps else basis.calls.get(key, ())
    made = Predicted(case.label, case.kind, place.ranks, place.on_node, tuple(sorted({
        one.ranks for one in known})), memory_bytes=case.memory_bytes, case=case,
        known=tuple(known))
    try:
        step = _certain(_step(case, place, basis))
    except Refused as why:
        return replace(made, refused=str(why))
    return _with_rates(replace(made, step=step, measured_ranks=step.ranks), known, price)


def _step(case: Case, place: JobShape, basis: Basis) -> StepTime:
    """Return the time of a case, of a collective by its own law. Raises Refused."""
    if case.skip:
        raise Refused(case.skip)
    demand, key = planned_fact(case, StepDemand), basis.key_of(case)
    if demand is None or demand.missing:
        raise Refused(demand.missing if demand else f"no law describes this {case.workload.name}")
    if planned_fact(case, IsolatedCall):
        (call,) = demand.calls
        device = basis.device_of(case).partition(":")[0]
        found = basis.laws.own(series := series_key(case, call, place, device), call)
        return StepTime(found.time, (Term(
            call.collective, found.time.value, 0.0, found.beyond),), found.beyond,
            basis.laws.laws[series].rank_counts)
    if key in basis.steps:
        return basis.steps[key].predict(demand, place)
    return of_another_shape(demand, place, *_shapes_beside(case, basis))


def _shapes_beside(case: Case, basis: Basis) -> tuple[list[StepLaw], list[StepLaw]]:
    """Return the laws of steps that differ in whole numbers or the model alone, the shape; and of
    those that also have another strategy or its options."""
    way = _way(case, planned_fact(case, CallWork), basis.device_of(case).partition(":")[0])
    wanted = _computing(case)
    alike, rest = [], []
    for law, of, own in basis.shapes:
        differ = {name for name in wanted.keys() | own.keys() if wanted.get(name) != own.get(name)}
        if of == way and not differ:
            alike.append(law)
        elif of == way and all(name.startswith(_OF_STRATEGY) for name in differ):
            rest.append(law)
    return alike, rest


def _way(case: Case, whole: CallWork | None, device: str) -> Key:
    """Return what must be the same for seconds a FLOP to be: of tokens they are not those of
    images."""
    return (case.kind, case.backend, case.env, device, bool(whole and whole.tokens))


_OF_STRATEGY = ("strategy", "options.")


def _computing(case: Case) -> dict[str, Any]:
    """Return the axes that are no extents and not the model: what must be alike."""
    axes, selectors = case.workload.choice().axes, case.workload.features.selectors
    return {name: value for name, value in axes.items() if name.startswith("options.") or (
        (not isinstance(value, int) or isinstance(value, bool))
        and (name not in selectors or name in _OF_STRATEGY))}


def _certain(step: StepTime) -> StepTime:
    """Return the time of a step. Raises Refused where its interval is too wide to say anything."""
    if step.time.ends[1] > WIDEST * step.time.value:
        raise Refused(f"its 95 % interval would reach over {WIDEST:g} times its value: measure "
                      "more numbers of ranks")
    return step


def predict_recorded(
    record: TrafficRecord, runs: Sequence[Run], world_sizes: Sequence[int],
    on_node: int | None = None,
) -> Predictions:
    """Return the predicted time of the calls that a job recorded, on other numbers of ranks."""
    (basis, left), made = _basis(runs), []
    for ranks in world_sizes:
        demands, missing = recorded_demands(record, ranks)
        place = JobShape(ranks, min(ranks, on_node or basis.on_node))
        made.append(_of_recorded(record, demands, place, basis.laws))
    return Predictions(tuple(made), basis.laws.laws, left, (
        "recorded calls: numbers and sizes of calls stay, groups of all ranks have all of the new "
        "ones, and nothing is waited for", *(f"left out of the recorded calls: {count:,} {why}"
                                             for why, count in missing.items()),
        *_notes(runs, world_sizes, basis)))


def _of_recorded(
    record: TrafficRecord, demands: Mapping[str | None, StepDemand], place: JobShape, laws: Laws,
) -> Predicted:
    made = Predicted("recorded calls of the mean rank", "", place.ranks, place.on_node,
                     (record.world_size,))
    terms: list[Term] = []
    try:
        for backend, demand in demands.items():
            terms += laws.terms(demand, place, _using(backend, laws))
        if not terms:
            raise Refused("no recorded call of several ranks has a law")
        return replace(made, step=_certain(step_time(terms, 0.0, math.inf)))
    except Refused as why:
        return replace(made, refused=str(why))


def _using(backend: str | None, laws: Laws) -> Using:
    """Return the laws' backend and device of recorded calls; where these name no backend, the only
    one that was measured. Raises Refused."""
    found = sorted({(key.backend, key.device) for key in laws.laws if backend in (
        None, key.backend)})
    if not found:
        raise Refused(f"no isolated call of {backend or 'any backend'} was measured")
    if len(found) > 1:
        raise Refused("isolated calls of several backends or devices were measured: "
                      f"{', '.join(' on '.join(pair) for pair in found)}; give results of one")
    return Using(*found[0])


def _with_rates(one: Predicted, known: Sequence[TimedCase], price: float | None) -> Predicted:
    """Return a prediction with its rates of work, and its efficiency beside the fewest ranks."""
    assert one.step is not None and one.case is not None
    whole = planned_fact(one.case, CallWork)
    if whole is None or whole.only_communicates:
        return one
    rate = one.step.time.map(lambda time_s: whole.amount / time_s)
    base = min(known, key=lambda case: case.ranks, default=None)
    efficiency = None
    if base and base.work:
        ideal = base.work.amount / base.time_s / base.ranks * one.ranks
        efficiency = rate.map(lambda value: value / ideal)
    per_sample = (whole.tokens or 0) / whole.amount
    spent = (price or 0.0) / HOUR_S * one.ranks
    return replace(
        one, unit=whole.unit, per_second=rate, efficiency=efficiency,
        tokens_per_second=rate.map(lambda value: per_sample * value) if per_sample else None,
        cost=rate.map(lambda value: 1e6 * spent / value) if price else None)


def _notes(runs: Sequence[Run], world_sizes: Sequence[int], basis: Basis) -> Iterator[str]:
    named = [(run.path, run.results) for run in runs]
    doubts = [*doubts_of(one for one in named if one[1].run.world_size > 1)]
    others = f"; nor {plural(len(doubts) - 1, 'other run')}" * (len(doubts) > 1)
    yield from (f"{first}{others}" for first in doubts[:1])
    if differ := other_differences(named):
        more = f" and {len(differ) - MOST_NAMED} more" * (len(differ) > MOST_NAMED)
        yield (f"the files also differ in {', '.join(differ[:MOST_NAMED])}{more}, which no law "
               "describes")
    by_call = grouped((key[:3], key) for key in basis.laws.laws)
    if several := [f"{call} of {backend}" for (call, backend, _), keys in by_call.items()
                   if len({key.rest for key in keys}) > 1 and basis.steps]:
        yield (f"{', '.join(several)}: measured in several ways; steps take that of their dtype, "
               "by single calls")
    if poor := {f"{key.collective} of {key.backend}": law.misfit
                for key, law in basis.laws.laws.items() if law.misfit}:
        yield (f"{', '.join(poor)}: medians scatter by up to {max(poor.values()):.0%} around their "
               "laws, more than their own errors: contention, or steps they do not have")
    most, farthest = max(results.run.world_size for _, results in named), max(world_sizes)
    if farthest > most:
        yield (f"{farthest} ranks are {math.log2(farthest / most):.1f} doublings beyond the {most} "
               "that were measured: measure on more; --next FILE writes the sweep of cases")

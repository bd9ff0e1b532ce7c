"""Predictions of the cases of a sweep for a number of ranks that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

from hpcbench.answers.answer import Run
from hpcbench.answers.compare_inputs import Side, differences
from hpcbench.answers.verdict import doubts_of
from hpcbench.config.load import check_config, replace_names
from hpcbench.config.schema import Config
from hpcbench.errors import UsageError
from hpcbench.operations.traffic import TrafficRecord
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.prediction.laws import ALGORITHMS, LEAST_ERROR, CallLaw, with_error
from hpcbench.prediction.measured import (
    JobShape,
    SeriesKey,
    TimedCase,
    demand_of,
    key_of,
    points_of,
    series_of,
    steps_of,
    timed_cases,
    unmeasured,
)
from hpcbench.prediction.recorded import recorded_demand
from hpcbench.prediction.steps import Laws, Refused, StepLaw, StepTime, Term, of_another_shape
from hpcbench.prediction.sweeps import on_all_ranks
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork, StepDemand, facts_of
from hpcbench.statistics.order import Interval
from hpcbench.units import format_seconds, grouped, plural

HOUR_S = 3600
_BY_DESIGN = ("ranks", "nodes", "scheduler.", "process.ranks_a_core")
"""What runs on several numbers of ranks differ in."""
WIDEST = 4.0
"""An interval that ends above so many times its value says nothing."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A case, or recorded calls (``case`` None), on ``ranks`` ranks of ``on_node`` a node.

    ``step`` is its time, None where ``refused`` says why there is none. ``measured_ranks`` are
    those of the cases it rests on. ``efficiency``: work per second and rank over that of the
    fewest of these; ``per_second``: units of work a second; ``memory_bytes``: of a rank, planned;
    ``cost``: of an hour x devices, for 10^6 units, where a price is known."""

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


@dataclass(frozen=True, slots=True)
class Predictions:
    """All predictions, the laws they rest on, and why measured cases were left out -> how many."""

    cases: tuple[Predicted, ...]
    laws: Mapping[SeriesKey, CallLaw]
    left_out: Mapping[str, int]
    notes: tuple[str, ...] = ()


def predict(
    sweeps: Sequence[Config], runs: Sequence[Run], world_sizes: Sequence[int],
    only: Sequence[str] = (), *, price: float | None = None, on_node: int | None = None,
) -> Predictions:
    """Return the predictions of sweeps from runs, for each number of ranks, ``on_node`` of them on
    a node, or as many as most nodes had.

    Raises UsageError if nothing is measured, or no case has the words of ``only``."""
    cases, left = timed_cases(runs)
    if not cases:
        raise UsageError("nothing to predict from: no case that a law describes has a time")
    most = on_node or max(case.place.on_node for case in cases)
    laws = laws_of(cases)
    made = [_predicted(case, place, cases, laws, price) for ranks in world_sizes
            for place in [JobShape(ranks, min(ranks, most))]
            for case in planned_cases(sweeps, cases, place)
            if all(word.lower() in case.label.lower() for word in only)]
    if not made:
        raise UsageError(f"--case {' '.join(only)}: no planned case has all these words")
    return Predictions(tuple(made), laws.laws, left, tuple(_notes(runs, world_sizes, laws)))


def predict_unmeasured(
    sweeps: Sequence[Config], cases: Sequence[TimedCase], ranks: int,
) -> list[Predicted]:
    """Return the predictions of the planned cases that were not measured on so many ranks."""
    place = JobShape(ranks, min(ranks, max(case.place.on_node for case in cases)))
    known = {case.key for case in cases if case.ranks == ranks}
    laws = laws_of(cases)
    return [_predicted(case, place, cases, laws, None)
            for case in planned_cases(sweeps, cases, place)
            if key_of(case, _device_of(case, cases)) not in known]


def laws_of(cases: Sequence[TimedCase]) -> Laws:
    return Laws({key: CallLaw(key.collective, points_of(same))
                 for key, same in series_of(cases).items() if key.collective in ALGORITHMS})


def planned_cases(
    sweeps: Sequence[Config], cases: Sequence[TimedCase], place: JobShape,
) -> Iterator[Case]:
    """Yield the cases of sweeps on so many ranks that no plan skips, each once."""
    seen: set[object] = set()
    for config in sweeps:
        for case in make_plan(config, place.ranks).cases:
            key = key_of(case, _device_of(case, cases))
            if key not in seen and case.world_size == place.ranks and not case.skip:
                seen.add(key)
                yield case


def sweeps_of(
    runs: Sequence[Run], names: Mapping[str, Sequence[str]] = MappingProxyType({}),
) -> list[Config]:
    """Return the sweeps of runs, with other names of models or strategies in their blocks."""
    configs = []
    for run in runs:
        raw = on_all_ranks(run.results.plan.config)
        for key, given in names.items():
            raw[key] = [*given]
            replace_names(raw, key)
        configs.append(check_config(raw, run.path))
    return configs


def _device_of(case: Case, cases: Sequence[TimedCase]) -> str:
    """Return the device that cases of its backend ran on; its own where none was measured."""
    return next((one.item.device for one in cases if one.item.case.kind == case.kind
                 and one.item.case.backend == case.backend and one.item.device), case.device)


def _predicted(
    case: Case, place: JobShape, cases: Sequence[TimedCase], laws: Laws, price: float | None,
) -> Predicted:
    device = _device_of(case, cases)
    known = tuple(steps_of(cases, key_of(case, device)))
    made = Predicted(case.label, case.kind, place.ranks, place.on_node, tuple(sorted({
        one.ranks for one in known})), memory_bytes=case.memory_bytes, case=case)
    demand = demand_of(case)
    try:
        if demand is None:
            raise Refused(f"no law describes kind {case.kind}")
        step = _certain(_step(case, place, known, cases, laws, device))
    except Refused as why:
        return replace(made, refused=str(why))
    return _with_rates(replace(made, step=step), known, price)


def _step(
    case: Case, place: JobShape, known: Sequence[TimedCase], cases: Sequence[TimedCase],
    laws: Laws, device: str,
) -> StepTime:
    """Return the time of a case, of a collective by its own law. Raises Refused."""
    demand = demand_of(case)
    assert demand is not None
    kind = device.partition(":")[0]
    if demand.flops and known:
        return StepLaw(tuple(known), laws, case.backend, kind).predict(demand, place)
    if demand.flops:
        others = grouped((one.key, one) for one in cases if one.demand.flops and (
            one.item.case.backend, one.key[2], one.item.case.workload.dtype) == (
            case.backend, kind, case.workload.dtype))
        return of_another_shape(demand, place, [
            StepLaw(tuple(steps_of(cases, key)), laws, case.backend, kind) for key in others])
    (call,) = demand.calls
    found = laws.time(call, place, case.backend, kind)
    return StepTime(found.time, (Term(call.collective, found.time.value, 0.0),), found.beyond)


def _certain(step: StepTime) -> StepTime:
    """Return the time of a step. Raises Refused where its interval is too wide to say anything."""
    if step.time.ends[1] > WIDEST * step.time.value:
        low, high = map(format_seconds, step.time.ends)
        raise Refused(f"its 95 % interval would be {low} to {high}: measure more numbers of "
                      "ranks, with more passes")
    return step


RECORDED = "recorded calls of the mean rank"


def predict_recorded(
    record: TrafficRecord, runs: Sequence[Run], world_sizes: Sequence[int],
    on_node: int | None = None,
) -> Predictions:
    """Return the predicted time of the calls that a job recorded, on other numbers of ranks."""
    cases, left = timed_cases(runs)
    laws, most = laws_of(cases), on_node or max((case.place.on_node for case in cases), default=1)
    made = []
    for ranks in world_sizes:
        demand, missing = recorded_demand(record, ranks)
        left = {**left, **{f"({plural(count, 'call')}) {why}": 1 for why, count in missing.items()}}
        made.append(_of_recorded(record, demand, JobShape(ranks, min(ranks, most)), laws))
    return Predictions(tuple(made), laws.laws, left, ASSUMED)


ASSUMED = ("recorded calls: numbers and sizes of calls stay, groups of all ranks have all of the "
           "new ones, and nothing is waited for",)


def _of_recorded(
    record: TrafficRecord, demand: StepDemand, place: JobShape, laws: Laws,
) -> Predicted:
    made = Predicted(RECORDED, "", place.ranks, place.on_node, (record.world_size,))
    backends = {(key.backend, key.device) for key in laws.laws}
    named = {one.backend for one in record.signatures if one.backend}
    fit = sorted(pair for pair in backends if not named or pair[0] in named) or sorted(backends)
    try:
        if not fit or not demand.calls:
            raise Refused("no isolated calls were measured" if not fit else
                          "no recorded call has a law")
        terms = laws.terms(demand, place, *fit[0])
        total = sum(term.seconds for term in terms)
        error = math.hypot(*(term.error_s for term in terms)) / total
        counts = laws.fewest_counts(demand, place, *fit[0])
        beyond = tuple(dict.fromkeys(name for term in terms for name in term.beyond))
        return replace(made, step=_certain(StepTime(
            with_error(total, math.hypot(error, LEAST_ERROR), max(counts - 1, 1)),
            tuple(sorted(terms, key=lambda term: -term.seconds)), beyond)))
    except Refused as why:
        return replace(made, refused=str(why))


def _with_rates(one: Predicted, known: Sequence[TimedCase], price: float | None) -> Predicted:
    """Return a prediction with its rates of work, and its efficiency beside the fewest ranks."""
    assert one.step is not None and one.case is not None
    planned = unmeasured(one.case)
    whole = next(iter(facts_of(planned, {}, CallWork)), None)
    if whole is None or whole.only_communicates:
        return one
    rate = one.step.time.map(lambda time_s: whole.amount / time_s)
    base = min(known, key=lambda case: case.ranks, default=None)
    of_base = base and next(iter(base.run.facts(base.item, CallWork)), None)
    efficiency = None
    if base and of_base:
        ideal = of_base.amount / base.time_s / base.ranks * one.ranks
        efficiency = rate.map(lambda value: value / ideal)
    per_sample = (whole.tokens or 0) / whole.amount
    spent = (price or 0.0) / HOUR_S * one.ranks
    return replace(
        one, unit=whole.unit, per_second=rate, efficiency=efficiency,
        tokens_per_second=rate.map(lambda value: per_sample * value) if per_sample else None,
        cost=rate.map(lambda value: 1e6 * spent / value) if price else None)


def _notes(runs: Sequence[Run], world_sizes: Sequence[int], laws: Laws) -> Iterator[str]:
    yield from doubts_of((run.path, run.results) for run in runs)
    differ = [] if len(runs) < 2 else [
        one.key for one in differences([Side(run.path, (run.results,)) for run in runs])
        if not one.key.startswith(_BY_DESIGN)]
    if differ:
        yield f"the files also differ in {', '.join(differ)}, which no law describes"
    for key, law in laws.laws.items():
        if law.misfit:
            yield (f"{key.collective} of {key.backend}: medians scatter by {law.misfit:.0%} around "
                   "their law, more than their own errors: contention, or steps it does not have")
    most = max(run.results.run.world_size for run in runs)
    if max(world_sizes) > most:
        farthest = max(world_sizes)
        yield (f"{farthest} ranks are {math.log2(farthest / most):.1f} doublings beyond the {most} "
               f"that were measured; runs on {halving_ranks(farthest, most)} ranks would halve the "
               "intervals")


def halving_ranks(ranks: int, most: int) -> int:
    """Return the least doubling of the ``most`` ranks measured from which a prediction for
    ``ranks`` has errors half as large, as they grow with 1 + the doublings between."""
    doublings = math.log2(ranks / most)
    wanted = max((doublings + 1) / 2 - 1, 0)
    return int(min(most * 2 ** math.ceil(doublings - wanted - 1e-9), ranks))

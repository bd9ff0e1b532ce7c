"""Predictions of the cases of a sweep for a number of ranks that nobody measured."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hpcbench.answers.answer import Run
from hpcbench.config.load import check_config
from hpcbench.errors import UsageError
from hpcbench.plan.case import Case, planner_of
from hpcbench.plan.expand import make_plan
from hpcbench.prediction.laws import ALGORITHMS, CallLaw
from hpcbench.prediction.measured import (
    JobShape,
    SeriesKey,
    TimedCase,
    key_of,
    points_of,
    series_of,
    steps_of,
    timed_cases,
)
from hpcbench.prediction.steps import Laws, Refused, StepLaw, StepTime, Term
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork, facts_of
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.order import Interval
from hpcbench.units import format_seconds

HOUR_S = 3600
WIDEST = 4.0
"""An interval that ends above so many times its value says nothing."""


@dataclass(frozen=True, slots=True)
class Predicted:
    """A case on ``ranks`` ranks of ``on_node`` a node, that was not measured on so many.

    ``step`` is its time, None where ``refused`` says why there is none. ``measured_ranks`` are
    those of the cases it rests on. ``efficiency``: work per second and rank over that of the
    fewest of these; ``per_second``: units of work a second; ``memory_bytes``: of a rank, planned;
    ``cost``: of an hour x devices, for 10^6 units, where a price is known."""

    case: Case
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

    @property
    def label(self) -> str:
        return self.case.label


@dataclass(frozen=True, slots=True)
class Predictions:
    """All predictions, the laws they rest on, and why measured cases were left out -> how many."""

    cases: tuple[Predicted, ...]
    laws: Mapping[SeriesKey, CallLaw]
    left_out: Mapping[str, int]
    notes: tuple[str, ...] = ()


def predict(
    runs: Sequence[Run], world_sizes: Sequence[int], only: Sequence[str] = (),
    price: float | None = None, on_node: int | None = None,
) -> Predictions:
    """Return the predictions of each file's sweep for each number of ranks, ``on_node`` of them on
    a node, or as many as most nodes had.

    Raises UsageError if nothing is measured, or no case has the words of ``only``."""
    cases, left = timed_cases(runs)
    if not cases:
        raise UsageError("nothing to predict from: no case that a law describes has a time")
    most = on_node or max(case.place.on_node for case in cases)
    measured = {key: CallLaw(key.collective, points_of(same))
                for key, same in series_of(cases).items() if key.collective in ALGORITHMS}
    planned = [(case, place) for ranks in world_sizes
               for case, place in _planned(runs, cases, JobShape(ranks, min(ranks, most)))
               if all(word.lower() in case.label.lower() for word in only)]
    if not planned:
        raise UsageError(f"--case {' '.join(only)}: no planned case has all these words")
    made = tuple(_predicted(case, place, cases, Laws(measured), price)
                 for case, place in planned)
    return Predictions(made, measured, left, tuple(_notes(runs, world_sizes)))


def _planned(
    runs: Sequence[Run], cases: Sequence[TimedCase], place: JobShape,
) -> Iterator[tuple[Case, JobShape]]:
    """Yield the cases of the files' sweeps on so many ranks, each once, and where they lie."""
    seen: set[object] = set()
    for run in runs:
        raw = _on_all_ranks(run.results.plan.config)
        for case in make_plan(check_config(raw, run.path), place.ranks).cases:
            key = key_of(case, _device_of(case, cases))
            if key not in seen and case.world_size == place.ranks and not case.skip:
                seen.add(key)
                yield case, place


def _on_all_ranks(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return a sweep without what binds it to the ranks and files of its run."""
    blocks = [{name: value for name, value in block.items() if name != "world_size"}
              for block in config["benchmarks"]]
    return {**config, "benchmarks": blocks}


def _device_of(case: Case, cases: Sequence[TimedCase]) -> str:
    """Return the device that cases of its backend ran on; its own where none was measured."""
    return next((one.item.device for one in cases if one.item.case.kind == case.kind
                 and one.item.case.backend == case.backend and one.item.device), case.device)


def _predicted(
    case: Case, place: JobShape, cases: Sequence[TimedCase], laws: Laws, price: float | None,
) -> Predicted:
    device = _device_of(case, cases)
    known = tuple(steps_of(cases, key_of(case, device)))
    made = Predicted(case, place.ranks, place.on_node, tuple(sorted({
        one.ranks for one in known})), memory_bytes=case.memory_bytes)
    demand = planner_of(case.kind).demand(case)
    try:
        if demand is None:
            raise Refused(f"no law describes kind {case.kind}")
        if not known:
            raise Refused("this case was not measured on any number of ranks")
        step = _step(case, place, known, laws, device)
        if step.time.ends[1] > WIDEST * step.time.value:
            low, high = map(format_seconds, step.time.ends)
            raise Refused(f"its 95 % interval would be {low} to {high}: measure more numbers of "
                          "ranks, with more passes")
    except Refused as why:
        return replace(made, refused=str(why))
    return _with_rates(replace(made, step=step), known, price)


def _step(
    case: Case, place: JobShape, known: Sequence[TimedCase], laws: Laws, device: str,
) -> StepTime:
    """Return the time of a case, of a collective by its own law. Raises Refused."""
    demand = planner_of(case.kind).demand(case)
    assert demand is not None
    kind = device.partition(":")[0]
    if not known[0].is_collective:
        return StepLaw(tuple(known), laws, case.backend, kind).predict(demand, place)
    (call,) = demand.calls
    found = laws.time(call, place, case.backend, kind)
    return StepTime(found.time, (Term(call.collective, found.time.value, 0.0),), found.beyond)


def _with_rates(one: Predicted, known: Sequence[TimedCase], price: float | None) -> Predicted:
    """Return a prediction with its rates of work, and its efficiency beside the fewest ranks."""
    assert one.step is not None
    planned = CaseResult(one.case, "not_run", "", None, one.case.device, None, None, {})
    whole = next(iter(facts_of(planned, {}, CallWork)), None)
    if whole is None or whole.only_communicates:
        return one
    base = min(known, key=lambda case: case.ranks)
    of_base = next(iter(base.run.facts(base.item, CallWork)), None)
    rate = one.step.time.map(lambda time_s: whole.amount / time_s)
    efficiency = None
    if of_base:
        ideal = of_base.amount / base.time_s / base.ranks * one.ranks
        efficiency = rate.map(lambda value: value / ideal)
    per_sample = (whole.tokens or 0) / whole.amount
    spent = (price or 0.0) / HOUR_S * one.ranks
    return replace(
        one, unit=whole.unit, per_second=rate, efficiency=efficiency,
        tokens_per_second=rate.map(lambda value: per_sample * value) if per_sample else None,
        cost=rate.map(lambda value: 1e6 * spent / value) if price else None)


def _notes(runs: Sequence[Run], world_sizes: Sequence[int]) -> Iterator[str]:
    most = max(run.results.run.world_size for run in runs)
    if max(world_sizes) > most:
        doublings = math.log2(max(world_sizes) / most)
        yield (f"{max(world_sizes)} ranks are {doublings:.1f} doublings beyond the {most} that "
               "were measured: intervals grow with each")

"""Topic predictions: would a way of training that was not measured on most ranks be faster there
than the fastest that was?"""

from __future__ import annotations

import operator
from collections.abc import Iterator, Mapping, Sequence
from functools import partial

from hpcbench.answers.answer import (
    CANNOT_TELL,
    CLEAR,
    NONE,
    Answer,
    Run,
    Topic,
    TopicOptions,
    plain_table,
    range_of,
    with_command,
)
from hpcbench.errors import ConfigError, UsageError
from hpcbench.prediction.laws import FEWEST_RANK_COUNTS
from hpcbench.prediction.measured import TimedCase, planned_fact, timed_cases
from hpcbench.prediction.predict import Predicted, predict_unmeasured, sweeps_of
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import CallWork
from hpcbench.statistics.order import Interval
from hpcbench.units import plural, three_digits
from hpcbench.views.labels import short_labels
from hpcbench.views.table import Column, Row, Show, Table


@dataclass(frozen=True, slots=True)
class PredictedWay:
    """A predicted way beside the fastest measured one of its task: ``ratio`` is how many times as
    fast it would be, with its 95 % interval."""

    label: str
    beside: str
    ranks: int
    ratio: Interval


@dataclass(frozen=True, slots=True)
class PredictedWays:
    """The record of the topic."""

    answers: tuple[Answer, ...]
    alternatives: tuple[PredictedWay, ...]


def predicted_ways(runs: Sequence[Run], _options: TopicOptions) -> PredictedWays:
    every = timed_cases(runs)[0]
    cases = [case for case in every if case.demand.flops]
    if len({case.ranks for case in cases}) < FEWEST_RANK_COUNTS:
        return PredictedWays((), ())  # no law: a report of one run has nothing to say here
    most = max(case.ranks for case in cases)
    try:
        made = predict_unmeasured(sweeps_of(runs), every, most)
    except (ConfigError, UsageError):  # a sweep of another version or kind, or none
        return PredictedWays((), ())
    found = [*_alternatives(cases, made, most)]
    return PredictedWays(with_command(_answers(found), runs, "predictions"), tuple(found))


def _alternatives(
    cases: Sequence[TimedCase], made: Sequence[Predicted], most: int,
) -> Iterator[PredictedWay]:
    """Yield each prediction beside the fastest measured case of its task, by work per second."""
    for one in made:
        assert one.case is not None
        work = planned_fact(one.case, CallWork)
        rates = [(case.work.amount / case.time_s, case) for case in cases
                 if work and case.work and case.task == work.task and case.ranks == most]
        if one.step is not None and work and rates:
            rate, best = max(rates, key=lambda item: item[0])
            same_s = work.amount / rate
            yield PredictedWay(one.label, best.item.case.label, most,
                              one.step.time.map(partial(operator.truediv, same_s)))


def _answers(found: Sequence[PredictedWay]) -> Iterator[Answer]:
    names = short_labels(label for one in found for label in (one.label, one.beside))
    faster = [one for one in found if one.ratio.ends[0] > 1]
    for one in sorted(faster, key=lambda one: -one.ratio.value):
        yield Answer(CLEAR, _sentence(one, names), remedy="measure it")
    if open_ones := [one for one in found if one.ratio.holds(1.0)]:
        best = max(open_ones, key=lambda one: one.ratio.value)
        more = f"; as uncertain: {len(open_ones) - 1} more" * (len(open_ones) > 1)
        yield Answer(CANNOT_TELL, _sentence(best, names) + more,
                     remedy="measure more numbers of ranks")
    elif found and not faster:
        yield Answer(NONE, "predicted: no way that was not measured on most ranks is faster")


def _sentence(one: PredictedWay, names: Mapping[str, str]) -> str:
    low, high = map(three_digits, one.ratio.ends)
    return (f"predicted: {names[one.label]} would be {three_digits(one.ratio.value)} times ({low} "
            f"to {high}) as fast as {names[one.beside]}, the fastest measured on "
            f"{plural(one.ranks, 'rank')}")


def predicted_tables(record: PredictedWays) -> Iterator[Table]:
    if record.alternatives:
        names = short_labels(label for one in record.alternatives
                             for label in (one.label, one.beside))
        yield plain_table("predicted beside the fastest measured", (
            Column("way", "predicted"), Column("beside", "measured"),
            Column("ranks", "ranks", Show.COUNT),
            Column("ratio", "times as fast", Show.NUMBER, "", "", "more"),
            Column("interval", "95 % interval", Show.NUMBER)), [
            Row((names[one.label], names[one.beside], one.ranks, one.ratio.value,
                 range_of(one.ratio))) for one in record.alternatives])


TOPIC = Topic("predictions", "would another way be faster on most ranks?", predicted_ways,
              predicted_tables, lambda _record: (), is_quiet=True)

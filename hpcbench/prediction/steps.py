"""The time of a step on other numbers of ranks: computing as measured, plus its collectives by
their laws, as far as computing does not hide them.

t(n) = c F(n) J(n) + x sum of calls(n): F are the FLOPs of the busiest rank, J how much longer the
slowest of n ranks takes, from the measured spread of samples, and x the part of the calls that is
exposed. c and x follow from the measured steps, by least squares of relative residuals."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import NamedTuple

import numpy as np

from hpcbench.plan.case import DEFAULT_MODE
from hpcbench.prediction.laws import (
    FEWEST_RANK_COUNTS,
    LEAST_ERROR,
    NOTHING_S,
    Array,
    CallLaw,
    LawTime,
    Refused,
    why_not,
    with_error,
)
from hpcbench.prediction.measured import JobShape, SeriesKey, TimedCase
from hpcbench.records import dataclass
from hpcbench.reduce.kind_facts import RepeatedCall, StepDemand
from hpcbench.statistics.distributions import distributions
from hpcbench.statistics.order import Interval
from hpcbench.units import plural

COMPUTE, SHAPE = "computing", "shape"


class Using(NamedTuple):
    """What a step's calls use."""

    backend: str
    device: str
    dtype: str = ""
    env: tuple[tuple[str, str], ...] = ()


class Term(NamedTuple):
    """A part of a predicted step: its time, and the standard error of that, in s, with its degrees
    of freedom."""

    name: str
    seconds: float
    error_s: float
    beyond: tuple[str, ...] = ()
    degrees: float = math.inf


@dataclass(frozen=True)
class Laws:
    """The laws of all isolated calls that were measured."""

    laws: Mapping[SeriesKey, CallLaw]

    def of(self, call: RepeatedCall, place: JobShape, using: Using) -> LawTime:
        """Return the time of a step's call there, by the law, of several, of the step's
        environment, of its dtype, by single calls, that says something, with groups at once (as
        many where they share a link between nodes), with most points. Raises Refused."""
        on_node, at_once = place.sharing(call)
        fit = [key for key in self.laws if key[:3] == (
            call.collective, using.backend, using.device)]
        near = [key for key in fit if key.on_node == on_node and (
            not on_node or key.at_once == at_once)]
        if not near:
            raise Refused(f"no isolated {call.collective} of {using.backend} was measured"
                          + (f" {_where(on_node, call.stride)}" if fit else ""))
        best = max(near, key=lambda key: (
            key.rest[0] == using.env, ("dtype", repr(using.dtype)) in key.rest[-1],
            key.rest[1] == DEFAULT_MODE,
            not self.laws[key].why_not(call.ranks, call.size_bytes),
            -abs(math.log(key.at_once / at_once)), len(self.laws[key].points.sizes)))
        found = self.laws[best].predict(call.ranks, call.size_bytes)
        apart = ("contention",) * (best.at_once != at_once)
        return found._replace(beyond=(*found.beyond, *apart))

    def own(self, key: SeriesKey, call: RepeatedCall) -> LawTime:
        """Return the time of a case that is one collective, by its own law. Raises Refused."""
        if call.ranks == 1:
            raise Refused("one rank sends nothing")
        if key not in self.laws:
            way = " in this way and with these axes" * any(one[:5] == key[:5] for one in self.laws)
            raise Refused(f"this {key.collective} of {key.backend} was not measured{way} "
                          f"{_where(key.on_node, call.stride)}")
        return self.laws[key].predict(call.ranks, call.size_bytes)

    def terms(self, demand: StepDemand, place: JobShape, using: Using) -> list[Term]:
        """Return the time of all calls of each collective, whose errors are those of one law and
        add up. Raises Refused."""
        terms: dict[str, Term] = {}
        for call in demand.calls:
            if call.ranks > 1:
                one = self.of(call, place, using)
                seconds = call.number * one.time.value
                before = terms.get(call.collective, Term(call.collective, 0.0, 0.0))
                terms[call.collective] = Term(
                    call.collective, before.seconds + seconds,
                    before.error_s + seconds * one.log_error,
                    tuple(dict.fromkeys((*before.beyond, *one.beyond))),
                    min(before.degrees, one.degrees))
        return [*terms.values()]


def _where(on_node: int, stride: int) -> str:
    groups = f" of a group (groups: {{stride: {stride}}})" * (stride > 1)
    return (f"between nodes of {plural(on_node, 'rank')}{groups} (nodes of another size: give "
            "--ranks-per-node)" if on_node else "within a node")


class StepTime(NamedTuple):
    """A predicted step with its 95 % interval, parts, the longest first, and ranks of its law."""

    time: Interval
    terms: tuple[Term, ...]
    beyond: tuple[str, ...]
    ranks: tuple[int, ...] = ()


def step_time(parts: Sequence[Term], misfit: float, degrees: float) -> StepTime:
    """Return the time of all parts, whose errors are independent of one another and of the relative
    ``misfit``, with the fewest degrees of any. Raises Refused if they take nothing."""
    total = sum(part.seconds for part in parts)
    if not total > 0:
        raise Refused("its calls hide what it computes: measure it on one rank, too")
    of_laws = math.hypot(*(part.error_s for part in parts)) / total
    every = dict.fromkeys(name for part in parts for name in part.beyond)
    degrees = max(int(min(degrees, *(part.degrees for part in parts))), 1)
    return StepTime(with_error(total, math.hypot(misfit, of_laws, LEAST_ERROR), degrees),
                    tuple(sorted(parts, key=lambda part: -part.seconds)), tuple(every))


def slowest_of(ranks: int, spread: float) -> float:
    """Return how many times the median the slowest of so many ranks takes in the mean, by Blom's
    approximation for a normal spread."""
    if ranks == 1:
        return 1.0
    score = float(distributions().ndtri((ranks - 0.375) / (ranks + 0.25)))
    return 1 + spread * score


@dataclass(frozen=True)
class StepLaw:
    """The law of one step over ranks, from the cases that measured it."""

    cases: tuple[TimedCase, ...]
    laws: Laws
    using: Using

    @cached_property
    def rank_counts(self) -> tuple[int, ...]:
        return tuple(sorted({case.ranks for case in self.cases}))

    @cached_property
    def spread(self) -> float:
        """Return the spread of computing: that of the fewest ranks, which wait least."""
        return min(self.cases, key=lambda case: case.ranks).spread

    def flops_of_slowest(self, demand: StepDemand, ranks: int) -> float:
        return demand.flops * slowest_of(ranks, self.spread)

    @cached_property
    def columns(self) -> Array:
        """Return of each case the FLOPs of the slowest rank, and the time of all its calls by
        themselves, (case, 2)."""
        return np.array([(self.flops_of_slowest(case.demand, case.ranks), sum(
            part.seconds for part in self.laws.terms(case.demand, case.place, self.using)))
            for case in self.cases])

    @cached_property
    def rates(self) -> tuple[float, float]:
        return self.coefficients()

    def coefficients(self, without: int = 0) -> tuple[float, float]:
        """Return c and x, from all cases but those of one number of ranks."""
        from scipy.optimize import nnls

        kept = [at for at, case in enumerate(self.cases) if case.ranks != without]
        columns = self.columns[kept] / np.array([[self.cases[at].time_s] for at in kept])
        scales = np.maximum(columns.max(axis=0), np.finfo(float).tiny)
        compute, exposed = nnls(columns / scales, np.ones(len(kept)))[0] / scales
        return float(compute), float(exposed)

    @cached_property
    def left_out(self) -> Array:
        """Return the logarithm of the measured time over that predicted by all others, for each
        number of ranks but the fewest: these tell how fast a rank computes, where most of any other
        step is exchange, and of fewer nothing is predicted."""
        errors = []
        for n in self.rank_counts[1:]:
            predicted = np.maximum(self.columns @ self.coefficients(without=n), NOTHING_S)
            errors.append(float(np.mean([
                math.log(case.time_s / time_s)
                for case, time_s in zip(self.cases, predicted, strict=True) if case.ranks == n])))
        return np.array(errors)

    @property
    def flops(self) -> float:
        return max(case.demand.flops for case in self.cases)

    @property
    def is_known(self) -> bool:
        return len(self.rank_counts) >= FEWEST_RANK_COUNTS

    @cached_property
    def misfit(self) -> float:
        """Return the standard error of a left-out number of ranks, of the logarithm."""
        return float(np.sqrt((self.left_out ** 2).mean()))

    def predict(self, demand: StepDemand, place: JobShape) -> StepTime:
        """Return the time of a step. Raises Refused where the data do not carry it."""
        if why := why_not("the step", self.rank_counts, place.ranks):
            raise Refused(why)
        return self.with_rates(demand, place, *self.rates, self.misfit)

    def with_rates(
        self, demand: StepDemand, place: JobShape, compute: float, exposed: float, misfit: float,
    ) -> StepTime:
        """Return the time of a step with these seconds a FLOP, share of the calls' time, and error,
        which grows with each doubling of the ranks."""
        is_beyond = not self.rank_counts[0] <= place.ranks <= self.rank_counts[-1]
        computing_s = compute * self.flops_of_slowest(demand, place.ranks)
        parts = [Term(COMPUTE, computing_s, 0.0, ("ranks",) * is_beyond), *(
            term._replace(seconds=exposed * term.seconds, error_s=exposed * term.error_s)
            for term in self.laws.terms(demand, place, self.using))]
        stretch = 1 + max(0.0, math.log2(place.ranks / self.rank_counts[-1]))
        return step_time(parts, misfit * stretch, len(self.left_out))._replace(
            ranks=self.rank_counts)


def of_another_shape(
    demand: StepDemand, place: JobShape, alike: Sequence[StepLaw], others: Sequence[StepLaw],
) -> StepTime:
    """Return the time of a step that was not measured: seconds a FLOP between those of the steps
    with the next fewer and more FLOPs, of those ``alike`` but for the shape if that is between
    them, else of all that compute alike; the exposed share of those with the same collectives.
    Raises Refused outside of the measured shapes."""
    around = _around(demand.flops, alike) or _around(demand.flops, others)
    known = sorted((law for law in (*alike, *others) if law.is_known), key=lambda law: law.flops)
    if not around:
        if not known:
            raise Refused("nothing that computes alike, but for its shape, was measured on "
                          f"{FEWEST_RANK_COUNTS} numbers of ranks")
        raise Refused(f"steps of {demand.flops:.3g} FLOP are outside of what was measured "
                      f"({known[0].flops:.3g} to {known[-1].flops:.3g})")
    named = {call.collective for call in demand.calls if call.ranks > 1}
    same = [law for law in alike if law.is_known] or [law for law in known if {
        call.collective for case in law.cases for call in case.demand.calls if call.ranks > 1
    } == named]
    if not same:
        by = ", ".join(sorted(named)) or "nothing"
        raise Refused(f"no measured step exchanges by {by} alone")
    weakest = min((*around, *same), key=lambda law: (law.rank_counts[-1], len(law.rank_counts)))
    fewest = max((law.rank_counts for law in (*around, *same)), key=lambda counts: counts[0])
    if why := why_not("the nearest shape", fewest, place.ranks):
        raise Refused(why)
    ends = [(math.log(law.flops), math.log(max(law.rates[0], 1e-30))) for law in around]
    flops, rates = (np.array(column) for column in zip(*ends, strict=True))
    compute = float(np.interp(math.log(demand.flops), flops, rates))
    exposed = float(np.mean([law.rates[1] for law in same]))
    misfit = math.hypot(max(law.misfit for law in (*around, *same)),
                        abs(ends[0][1] - ends[1][1]) / 2)
    found = weakest.with_rates(demand, place, math.exp(compute), exposed, misfit)
    return found._replace(beyond=(*found.beyond, SHAPE))


def _around(flops: float, laws: Sequence[StepLaw]) -> tuple[StepLaw, ...]:
    """Return the laws with the next fewer and the next more FLOPs; nothing without both."""
    below = [law for law in laws if law.flops <= flops and law.is_known]
    above = [law for law in laws if law.flops >= flops and law.is_known]
    if not below or not above:
        return ()
    return max(below, key=lambda law: law.flops), min(above, key=lambda law: law.flops)

"""What a kind tells of its cases: who others wait for, the work of a call, and rates of links."""

from __future__ import annotations

from dataclasses import dataclass

from hpcbench.kinds.registry import kinds
from hpcbench.kinds.spec import in_this_package
from hpcbench.reduce.comparison import Comparison
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.statistics.overlap import OverPasses

BEFORE_THE_CALL = "before the call"
"""Where a rank is late that starts late."""


@dataclass(frozen=True, slots=True)
class Lateness:
    """One look at the ranks of a case.

    Attributes:
        comparison: of the moments from which on a rank does not hold the others up; None where
            nothing tells them.
        phase: where most of the lateness of `comparison`'s rank arises; empty if not known.
        phase_s: how much longer that rank is there than the others.
        missing: why nothing tells; empty where the comparison does.
    """

    comparison: Comparison | None = None
    phase: str = ""
    phase_s: float = 0.0
    missing: str = ""


OWN_WORK, EXCHANGE = "own work", "exchange"
"""What a rank takes by itself; and what it takes once all ranks are ready to exchange."""


@dataclass(frozen=True, slots=True)
class Variation:
    """How the exchange of a case varies from call to call, beside the work before it.

    Attributes:
        cv, own_cv: coefficients of variation of the exchange, and of the ranks' own work.
        share: mean deviation of the exchange over a call.
        chance: how likely chance makes it vary so much more than the work.
        is_high: whether it surely does.
    """

    cv: float
    own_cv: float
    share: float
    chance: float
    is_high: bool


@dataclass(frozen=True, slots=True)
class Waiting:
    """How much of a call ranks wait for whichever of them is last.

    ``share`` is None where nothing tells; ``low`` to ``high`` is its 95 % interval, None where
    there is none. ``missing`` says why a part of it is not known.
    """

    share: float | None = None
    low: float | None = None
    high: float | None = None
    variation: Variation | None = None
    missing: str = ""


@dataclass(frozen=True, slots=True)
class RankWork:
    """How long each rank takes for a part of a call in which it waits for nobody.

    Attributes:
        what: OWN_WORK or EXCHANGE.
        ranks: who; ``times_s`` are medians of its passes, (rank, pass).
        alike: a number for each rank: those with the same one have the same to do.
        group: what ranks with the same number share, such as a stage; empty if all have the same.
        ready_s: when each rank is ready to exchange, (rank, pass); empty of OWN_WORK.
    """

    what: str
    ranks: tuple[int, ...]
    times_s: tuple[tuple[float, ...], ...]
    alike: tuple[int, ...]
    group: str = ""
    ready_s: tuple[tuple[float, ...], ...] = ()


SAMPLES = "samples"
"""The unit of trainings, by which their cost is counted."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one call of a case does (of a training: a step), as its kind counts it.

    Attributes:
        task: what is equal in cases that do the same, however much and on however many ranks.
        title: the task in words.
        way: how the task is divided over ranks, in words; cases of one way are compared.
        amount: what all ranks together do in a call, in ``unit``: samples, rows or bytes.
        tokens: the same in tokens, of what has some.
        alone: what makes it the base of all ways, as it runs on one rank; else nothing.
        only_communicates: it moves data and computes nothing: more ranks do not share its work.
        size: the extent of what only communicates, in words.
        communication: the share of a call that communication adds to it; None if not measured.
    """

    task: tuple[object, ...]
    title: str
    way: str
    amount: float
    unit: str
    tokens: int | None = None
    alone: str = ""
    only_communicates: bool = False
    size: str = ""
    communication: OverPasses | None = None


def work_of(results: Results, item: CaseResult) -> Work | None:
    """Return what a case does, as its kind says it; a plug-in's fault costs only that.

    None of a case without statistics, and of a kind that does not count its work.
    """
    spec = kinds().get(item.case.kind)
    if spec is None or item.statistics is None or not item.statistics.median_s > 0:
        return None
    try:
        return spec.deriver().work(item, results.record_of(item))
    except Exception:
        if in_this_package(spec.deriver_path):
            raise
        return None


@dataclass(frozen=True, slots=True)
class PairRates:
    """A rate from every rank (row) to every other one (column); more is better.

    None was not measured. ``each_way`` is whether the two values of a link were measured apart.
    ``missing`` says why links cannot be compared with one another, if they cannot.
    """

    rates: tuple[tuple[float | None, ...], ...] = ()
    each_way: bool = True
    missing: str = ""

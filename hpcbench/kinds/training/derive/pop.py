"""Parallel efficiency of trainings: which share of the ranks' time is useful, and what costs it.

Where the ranks meet once in a step, its stamps tell: what a rank does until it has its own last
gradient, and in the optimizer, is useful; the rest is waiting and communication. Where they wait
for one another within a pass over the model, only steps without communication tell what is useful.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from hpcbench.kinds.training.derive.exposed import Exposure
from hpcbench.kinds.training.derive.rates import ScalingRecord
from hpcbench.kinds.training.derive.slow_ranks import BLOCKING, counted_steps
from hpcbench.kinds.training.derive.stalls import stamps_of, why_not
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce import fold
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.statistics.parallel_efficiency import (
    ACCEPTABLE,
    Efficiency,
    of_steps_that_meet,
    of_two_factors,
)

STAMPS, WITHOUT = "stamps", "steps without communication"


@dataclass(frozen=True, slots=True)
class Pop:
    """POP's efficiencies of a training.

    Attributes:
        source: what tells which time is useful: STAMPS or WITHOUT.
        useful_s: each rank's useful seconds of a step.
        step_s: seconds of a step.
        efficiency: the factors.
        computation_scaling: useful seconds for a sample in the scaling's base over those here.
        global_efficiency: that times the parallel efficiency.
    """

    source: str
    useful_s: tuple[float, ...]
    step_s: float
    efficiency: Efficiency
    computation_scaling: float | None = None
    global_efficiency: float | None = None

    @property
    def score(self) -> float | None:
        """Return the efficiency score: useful over consumed device time, from 0 to 1.

        None where the two times contradict each other.
        """
        return self.efficiency.parallel if self.efficiency.parallel <= 1 else None

    @property
    def limit(self) -> str | None:
        """Return the name of the smallest factor below what is acceptable; None of none."""
        parts = ("load_balance", *(("serialisation", "transfer") if self.source == STAMPS
                                   else ("communication",)))
        least = min(parts, key=lambda name: float(getattr(self.efficiency, name)))
        return least if getattr(self.efficiency, least) < ACCEPTABLE else None


def from_stamps(item: CaseResult, samples: CaseSamples) -> Pop | None:
    """Return what the stamps of a training tell; None where they cannot separate waiting."""
    work, case = training_of(item.case), item.case
    if len(samples.ranks) == 1 and case.batch == 1:
        _, counted = counted_steps(case, samples)
        step_s = fold.waits_ns(samples)[:, counted] / 1e9
        before_s, after_s = step_s, np.zeros_like(step_s)
    elif why_not(case, work, samples) or case.backend == BLOCKING or "broadcast" in work.calls:
        return None  # the last: ranks send each other in the optimizer what they updated
    else:
        stamps = stamps_of(case, samples)
        step_s, before_s = stamps.step_s, stamps.ready_s
        after_s = stamps.phase_s.get("optimizer", np.zeros_like(step_s))
    longest_s = step_s.max(axis=0)
    found = of_steps_that_meet(before_s, after_s, longest_s)
    if found is None:
        return None
    useful_s = tuple((before_s + after_s).mean(axis=1).tolist())
    return Pop(STAMPS, useful_s, float(longest_s.mean()), found)


def from_partner(item: CaseResult, exposure: Exposure) -> Pop | None:
    """Return what the steps without communication tell; None without them."""
    if item.statistics is None or len(exposure.own_s) < 2:
        return None
    useful_s = tuple(own.median for own in exposure.own_s)
    found = of_two_factors(useful_s, item.statistics.median_s)
    return None if found is None else Pop(WITHOUT, useful_s, item.statistics.median_s, found)


def beside_base(
    own: Pop | None, scaling: ScalingRecord | None, known: Mapping[str, Pop | None],
) -> Pop | None:
    """Return the same with how useful time scales from the base, where both are told alike.

    ``known`` has those of all cases by id. A sample needs as much useful time on any number of
    ranks where computing scales: the factor is 1.
    """
    base = known.get(scaling.base_case) if scaling else None
    if own is None or base is None or scaling is None:
        return own
    if own.source != base.source and scaling.base_ranks > 1:
        return own
    samples = len(own.useful_s) / len(base.useful_s) if scaling.kind == "weak" else 1.0
    factor = sum(base.useful_s) * samples / sum(own.useful_s)
    return replace(own, computation_scaling=factor,
                   global_efficiency=factor * own.efficiency.parallel)

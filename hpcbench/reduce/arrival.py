"""The entry of ranks that were to be late, and how much of the delay punctual ranks absorbed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from hpcbench.operations.arrival import ROTATING, TOGETHER
from hpcbench.plan.case import Case, case_to_json
from hpcbench.records import dataclass
from hpcbench.reduce.results import CaseResult, CaseSamples, LateArrivals
from hpcbench.reduce.stack import pass_slices
from hpcbench.texts import to_json

MOST_OFF = 0.1
"""Share of the planned delay by which a rank may miss its moment."""
_MAY_DIFFER = ("case_id", "index", "block", "arrival", "skip", "needs", "estimate_s", "note")
"""Fields in which a case may differ from the one whose ranks enter together."""
Times = npt.NDArray[np.int64]


def together_of(cases: Iterable[Case]) -> Mapping[str, str]:
    """Return case_id of each case with late ranks -> that of the same case without, "" if none."""
    entering = [case for case in cases if case.skip is None and case.workload.features.enters_late]
    late = [case for case in entering if case.arrival != TOGETHER]
    partners = {_same(case): case.case_id for case in entering if late and case.arrival == TOGETHER}
    return {case.case_id: partners.get(_same(case), "") for case in late}


def _same(case: Case) -> str:
    return to_json({name: value for name, value in case_to_json(case).items()
                    if name not in _MAY_DIFFER})


def planned_ns(case: Case, samples: CaseSamples) -> Times:
    """Return the planned delay of each rank in each sample, (rank, sample)."""
    entry, ranks = case.arrival, case.group_size
    if entry == TOGETHER:
        return np.zeros_like(samples.start_ns)
    row = np.concatenate([np.arange(part.stop - part.start) for part in pass_slices(samples)])
    turns = ranks if entry.late == ROTATING else 1
    delays = np.array([[entry.delay_ns(rank, ranks, turn) for turn in range(turns)]
                       for rank in range(ranks)], dtype=np.int64)
    numbers = {rank: number for group in case.group_ranks for number, rank in enumerate(group)}
    return np.asarray(delays[[numbers[rank] for rank in samples.ranks]][:, row % turns])


@dataclass(frozen=True, slots=True, eq=False)
class Entries:
    """How ranks entered: (sample,) each. ``lateness_ns`` is the delay after the first rank of the
    one that was to be last, ``missed`` whether a rank was off by MOST_OFF of the planned delay.
    ``punctual`` is (rank, sample)."""

    lateness_ns: Times
    missed: npt.NDArray[np.bool_]
    punctual: npt.NDArray[np.bool_]


def entries(samples: CaseSamples, planned: Times, late_ns: Times) -> Entries:
    """``planned`` and ``late_ns``, s_rk - min_r s_rk on the global clock, are (rank, sample)."""
    punctual, latest = planned == 0, planned.max(axis=0)
    return Entries(
        np.where(planned == latest, late_ns, 0).max(axis=0),
        (latest > 0) & (np.abs(late_ns - planned) > MOST_OFF * latest).any(axis=0), punctual)


def by_rank_s(
    samples: CaseSamples, chosen: npt.NDArray[np.bool_],
) -> tuple[float | None, ...]:
    """Return each rank's median time from its own entry, of samples ``chosen`` (rank, sample)."""
    own_ns = samples.end_ns - samples.start_ns
    return tuple(float(np.median(times[which])) / 1e9 if which.any() else None
                 for times, which in zip(own_ns, chosen, strict=True))


def absorbed_share(own_s: float, together_s: float, lateness_s: float) -> float:
    """Return 1 - extra time of a punctual rank / delay: 0 if it waits for all of it, 1 for none."""
    return 1 - (own_s - together_s) / lateness_s


def with_absorbed(cases: Sequence[CaseResult]) -> Iterator[CaseResult]:
    """Yield cases with the absorbed share, by the same case with all ranks together."""
    partners = together_of(item.case for item in cases)
    of_case = {item.case.case_id: item.timing.arrivals for item in cases if item.timing}
    for item in cases:
        together, timing = of_case.get(partners.get(item.case.case_id, "")), item.timing
        if together is None or timing is None or timing.arrivals is None or not _is_late(
                item.case, timing.arrivals.lateness_s):
            yield item
        else:
            yield replace(item, timing=replace(
                timing, arrivals=_with_share(timing.arrivals, together)))


def _is_late(case: Case, lateness_s: float | None) -> bool:
    """Return whether the median delay is the planned one, and that is not 0."""
    by_s = case.arrival.by_ns / 1e9
    return by_s > 0 and lateness_s is not None and abs(lateness_s - by_s) <= MOST_OFF * by_s


def _with_share(late: LateArrivals, together: LateArrivals) -> LateArrivals:
    """Return ``late`` with the absorbed share; the ends of its interval take both intervals at
    their worst. Unchanged where no rank has punctual times in both cases."""
    both_s = [(own, base) for own, base in zip(
        late.own_by_rank_s, together.own_by_rank_s, strict=True)
        if own is not None and base is not None]
    own_s, other_s, lateness_s = late.own_entry_s, together.own_entry_s, late.lateness_s
    if not both_s or not lateness_s or own_s is None or other_s is None:
        return late
    mean_s = sum(base for _, base in both_s) / len(both_s)
    with_share = replace(late, own_entry_together_s=mean_s,
                         absorbed_share=absorbed_share(own_s, mean_s, lateness_s))
    low_s, high_s = late.own_entry_low_s, late.own_entry_high_s
    other_low_s, other_high_s = together.own_entry_low_s, together.own_entry_high_s
    if low_s is None or high_s is None or other_low_s is None or other_high_s is None:
        return with_share
    return replace(
        with_share,
        absorbed_low=absorbed_share(high_s, mean_s - (other_s - other_low_s), lateness_s),
        absorbed_high=absorbed_share(low_s, mean_s + (other_high_s - other_s), lateness_s))

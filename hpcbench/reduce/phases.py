"""Training steps from the inside: their phases, the ranks' memory, and whether they add up.

Every duration is of the rank's own clock. All ranks leave an exchange together: the longest belongs
to a rank that waits, the shortest to the one that is waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.checks import AGAIN, EVENT_NS, RATE, Problem, bad_entry, first_true
from hpcbench.reduce.fold import Times, waits_ns
from hpcbench.reduce.results import Arrival, CaseSamples, Phase, Steps
from hpcbench.reduce.stack import Pass
from hpcbench.trace.schema import ARRIVAL, Record
from hpcbench.units import rank_list

MEMORY = "memory"
"""The key of a record's detail for the memory that the rank held."""
_ERROR = "phases"
"""The key for the reason why durations do not match the samples."""


def check_phases(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB148: all ranks have the same phases, none is negative; they and arrivals fit in the step.
    """
    lost = [rank for rank, record in records.items() if _ERROR in record.detail]
    if lost:
        yield Problem("HB148", f"rank {rank_list(lost)}: {records[lost[0]].detail[_ERROR]}: which "
                      f"step a phase is of is unknown; {AGAIN}")
        return
    names = {rank: tuple(record.phases) for rank, record in records.items()}
    expected = next(iter(names.values()))
    others = [rank for rank, own in names.items() if own != expected]
    if others:
        yield Problem("HB148", f"rank {rank_list(others)} has other phases "
                      f"({', '.join(names[others[0]]) or 'none'}) than the rest "
                      f"({', '.join(expected) or 'none'}): they did not do the same step; {AGAIN}")
        return
    for name, values in samples.phases.items():
        if at := first_true(values < 0):
            yield bad_entry("HB148", samples, at, f"{name} took less than no time: look at the "
                            "rank's clock")
            return
    if samples.phases:
        by_events = any(not record.device.startswith("cpu") for record in records.values())
        yield from _too_long(samples, *((EVENT_NS, RATE) if by_events else (0, 0.0)))


def _too_long(samples: CaseSamples, spare_ns: int, rate: float) -> Iterator[Problem]:
    """On a device phases are read by events, whose clock is not the one of start and end."""
    step_ns = waits_ns(samples)
    phases_ns = np.asarray(sum(_durations(samples).values()), dtype=np.int64)
    most_ns = step_ns + spare_ns + rate * step_ns
    if at := first_true(phases_ns > most_ns):
        yield bad_entry("HB148", samples, at, "the phases together are "
                        f"{phases_ns[at] - step_ns[at]} ns longer than their step of {step_ns[at]} "
                        "ns: some time was counted twice, or was not in the step")
    for name, values in samples.phases.items():
        if name.startswith(ARRIVAL) and (at := first_true(values > most_ns)):
            yield bad_entry("HB148", samples, at, f"{name} is after the end of its step: look at "
                            "the rank's clock")
            return


def _durations(samples: CaseSamples) -> Mapping[str, Times]:
    """Return the phases without the arrivals in them."""
    return {name: values for name, values in samples.phases.items() if not name.startswith(ARRIVAL)}


def steps_of(
    samples: CaseSamples, counted: npt.NDArray[np.bool_], passes: Sequence[slice | None],
    late_ns: Times | None,
) -> Steps | None:
    """Return where the time of the counted samples went; None where there are no phases.

    ``passes`` are where each planned pass lies among the samples; ``late_ns``, (rank, sample), how
    late each rank began its step: without it there are no arrivals.
    """
    phases_ns = {name: values[:, counted] for name, values in _durations(samples).items()}
    if not phases_ns:
        return None
    step_ns = waits_ns(samples)[:, counted]
    other_ns = step_ns - np.asarray(sum(phases_ns.values()), dtype=np.int64)
    total_ns = int(step_ns.sum()) or 1
    return Steps(
        ranks=samples.ranks, step_s=_medians_s(step_ns), other_s=_medians_s(other_ns),
        other_share=int(other_ns.sum()) / total_ns,
        phases=tuple(Phase(name, int(times_ns.sum()) / total_ns, _medians_s(times_ns),
                           *_vote(np.max, times_ns, samples.ranks),
                           *_vote(np.min, times_ns, samples.ranks))
                     for name, times_ns in phases_ns.items()),
        pass_step_s=tuple(part and _medians_s(waits_ns(samples)[:, part][:, counted[part]])
                          for part in passes),
        arrivals=() if late_ns is None else tuple(_arrivals(samples, late_ns, counted)))


def _arrivals(
    samples: CaseSamples, late_ns: Times, counted: npt.NDArray[np.bool_]
) -> Iterator[Arrival]:
    """Yield which rank is late at every bucket, in order; nothing of a single rank.

    The time in the exchange does not show it, because all ranks leave together.
    """
    for name, values in samples.phases.items():
        if not name.startswith(ARRIVAL) or len(samples.ranks) == 1:
            continue
        arrived_ns = (late_ns + values)[:, counted]
        is_last = arrived_ns == arrived_ns.max(axis=0)
        row = int(np.argmax(is_last.mean(axis=1)))
        behind_ns = arrived_ns[row] - np.median(np.delete(arrived_ns, row, axis=0), axis=0)
        yield Arrival(
            bucket=int(name.removeprefix(ARRIVAL)), median_s=_medians_s(arrived_ns),
            last_rank=samples.ranks[row], last_share=float(is_last[row].mean()),
            behind_s=float(np.median(behind_ns[is_last[row]])) / 1e9)


def _vote(
    extreme: Callable[..., Times], times_ns: Times, ranks: tuple[int, ...]
) -> tuple[int | None, float | None]:
    """Return the rank that most often has the extreme time of all, and in which share."""
    if len(ranks) == 1:
        return None, None
    shares = np.mean(times_ns == extreme(times_ns, axis=0), axis=1)
    row = int(np.argmax(shares))
    return ranks[row], float(shares[row])


def _medians_s(times_ns: Times) -> tuple[float, ...]:
    return tuple((np.median(times_ns, axis=1) / 1e9).tolist())


def most_memory(records: Iterable[tuple[int, Record]]) -> dict[str, dict[str, int | str]] | None:
    """Return for each rank, as text, the maximum of each number over its records."""
    most: dict[str, dict[str, int | str]] = defaultdict(dict)
    for rank, record in sorted(records, key=lambda item: item[0]):
        peaks, reported = most[str(rank)], record.detail.get(MEMORY, {})
        for name, value in reported.items():
            before = peaks.get(name, value)
            peaks[name] = max(value, before) if isinstance(value, int) else value
    return {rank: peaks for rank, peaks in most.items() if peaks} or None

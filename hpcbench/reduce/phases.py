"""Training steps from the inside: their phases, the ranks' memory, and whether they add up.

Every duration is of the rank's own clock. All ranks leave an exchange together: the longest belongs
to a rank that waits, the shortest to the one that is waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.arrivals import arrivals_of
from hpcbench.reduce.checks import AGAIN, Problem
from hpcbench.reduce.derived import waits_ns
from hpcbench.reduce.results import CaseSamples, Phase, Steps
from hpcbench.reduce.stack import Pass
from hpcbench.reduce.stamps import EVENT_NS, RATE
from hpcbench.trace.schema import ARRIVAL, Record
from hpcbench.units import rank_list

MEMORY = "memory"
"""The key of a record's detail for the memory that the rank held."""
_ERROR = "phases"
"""The key for the reason why durations do not match the samples."""
Times = npt.NDArray[np.int64]


def check_phases(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB148: all ranks have the same phases, none is negative, and they fit into their step.

    So do the arrivals in it.
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
        if (values < 0).any():
            rank, row = _first(samples, values < 0)
            yield Problem("HB148", f"rank {rank} iteration {row}: {name} took less than no time: "
                          f"look at the rank's clock; {AGAIN}")
            return
    by_events = any(not record.device.startswith("cpu") for record in records.values())
    yield from _too_long(samples, *((EVENT_NS, RATE) if by_events else (0, 0.0)))


def _too_long(samples: CaseSamples, spare_ns: int, rate: float) -> Iterator[Problem]:
    """On a device phases are read by events, whose clock is not the one of start and end."""
    if not samples.phases:
        return
    step_ns, phases_ns = waits_ns(samples), _in_phases_ns(samples)
    most_ns = step_ns + spare_ns + rate * step_ns
    bad = phases_ns > most_ns
    if bad.any():
        rank, row = _first(samples, bad)
        at = samples.ranks.index(rank), row
        yield Problem("HB148", f"rank {rank} iteration {row}: the phases together are "
                      f"{phases_ns[at] - step_ns[at]} ns longer than their step of "
                      f"{step_ns[at]} ns: some time was counted twice, or was not in the step; "
                      f"{AGAIN}")
    for name, values in samples.phases.items():
        if name.startswith(ARRIVAL) and (values > most_ns).any():
            rank, row = _first(samples, values > most_ns)
            yield Problem("HB148", f"rank {rank} iteration {row}: {name} is after the end of its "
                          f"step: look at the rank's clock; {AGAIN}")
            return


def _first(samples: CaseSamples, bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return rank and iteration of the first bad entry."""
    row, column = np.argwhere(bad)[0]
    return samples.ranks[int(row)], int(column)


def _in_phases_ns(samples: CaseSamples) -> Times:
    """Return (rank, sample): the time in any phase."""
    return np.asarray(sum(_durations(samples).values()), dtype=np.int64)


def _durations(samples: CaseSamples) -> Mapping[str, Times]:
    """Return the phases without the arrivals in them."""
    return {name: values for name, values in samples.phases.items()
            if not name.startswith(ARRIVAL)}


def steps_of(
    samples: CaseSamples, counted: npt.NDArray[np.bool_], passes: Sequence[slice | None] = (),
    late_ns: Times | None = None,
) -> Steps | None:
    """Return where the time of the counted samples went; None where there are no phases.

    ``passes`` are where each planned pass lies among the samples; ``late_ns``, (rank, sample), how
    late each rank began its step: without it there are no arrivals.
    """
    if not _durations(samples):
        return None
    step_ns = waits_ns(samples)[:, counted]
    other_ns = step_ns - _in_phases_ns(samples)[:, counted]
    total_ns = int(step_ns.sum()) or 1
    return Steps(
        ranks=samples.ranks, step_s=_medians_s(step_ns), other_s=_medians_s(other_ns),
        other_share=int(other_ns.sum()) / total_ns,
        phases=tuple(_phase(name, values[:, counted], samples.ranks, total_ns)
                     for name, values in _durations(samples).items()),
        pass_step_s=tuple(part and _medians_s(waits_ns(samples)[:, part][:, counted[part]])
                          for part in passes),
        arrivals=() if late_ns is None else arrivals_of(samples, late_ns, counted))


def _phase(name: str, times_ns: Times, ranks: tuple[int, ...], total_ns: int) -> Phase:
    slowest, slowest_share = _vote(np.max, times_ns, ranks)
    quickest, quickest_share = _vote(np.min, times_ns, ranks)
    return Phase(name, int(times_ns.sum()) / total_ns, _medians_s(times_ns), slowest,
                 slowest_share, quickest, quickest_share)


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


def most_memory(
    records: Iterable[tuple[int, Record]],
) -> dict[str, dict[str, int | str]] | None:
    """Return for each rank, as text, the maximum of each number over its records."""
    most: dict[str, dict[str, int | str]] = defaultdict(dict)
    for rank, record in sorted(records, key=lambda item: item[0]):
        peaks, reported = most[str(rank)], record.detail.get(MEMORY, {})
        for name, value in reported.items():
            before = peaks.get(name, value)
            peaks[name] = max(value, before) if isinstance(value, int) else value
    return {rank: peaks for rank, peaks in most.items() if peaks} or None

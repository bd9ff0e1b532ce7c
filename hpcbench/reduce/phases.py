"""Training steps from the inside: their phases, the ranks' memory, and whether they add up.

Every time is of the rank's own clock. Backward communicates, so all ranks leave it together: the
longest backward belongs to a rank that waits, the shortest to the one that is waited for.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator

import numpy as np
import numpy.typing as npt

from hpcbench.reduce.checks import AGAIN, Problem
from hpcbench.reduce.derived import waits_ns
from hpcbench.reduce.intake import rank_list
from hpcbench.reduce.results import CaseSamples, Phase, Steps
from hpcbench.reduce.stack import Pass
from hpcbench.reduce.stamps import EVENT_NS, RATE
from hpcbench.trace.schema import Record

MEMORY = "memory"
"""Where the detail of a record tells what the rank held."""
_LOST = "phases"
"""Where it tells of durations that were not of the samples."""
Times = npt.NDArray[np.int64]


def check_phases(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB148: all ranks have the same phases, none is negative, and they fit into their step."""
    lost = [rank for rank, record in records.items() if _LOST in record.detail]
    if lost:
        yield Problem("HB148", f"rank {rank_list(lost)}: {records[lost[0]].detail[_LOST]}: which "
                      f"step a phase is of is unknown; {AGAIN}")
        return
    names = {rank: tuple(record.phases) for rank, record in records.items()}
    expected = next(iter(names.values()))
    others = [rank for rank, found in names.items() if found != expected]
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
    bad = phases_ns > step_ns + spare_ns + rate * step_ns
    if bad.any():
        rank, row = _first(samples, bad)
        at = samples.ranks.index(rank), row
        yield Problem("HB148", f"rank {rank} iteration {row}: the phases together are "
                      f"{phases_ns[at] - step_ns[at]} ns longer than their step of "
                      f"{step_ns[at]} ns: some time was counted twice, or was not in the step; "
                      f"{AGAIN}")


def _first(samples: CaseSamples, bad: npt.NDArray[np.bool_]) -> tuple[int, int]:
    """Return rank and iteration of the first bad entry."""
    row, column = np.argwhere(bad)[0]
    return samples.ranks[int(row)], int(column)


def _in_phases_ns(samples: CaseSamples) -> Times:
    """Return (rank, sample): the time in any phase."""
    return np.asarray(sum(samples.phases.values()), dtype=np.int64)


def steps_of(samples: CaseSamples, counted: npt.NDArray[np.bool_]) -> Steps | None:
    """Return where the time of the counted samples went; None where there are no phases."""
    if not samples.phases:
        return None
    step_ns = waits_ns(samples)[:, counted]
    other_ns = step_ns - _in_phases_ns(samples)[:, counted]
    total_ns = int(step_ns.sum()) or 1
    return Steps(
        ranks=samples.ranks, step_s=_medians_s(step_ns), other_s=_medians_s(other_ns),
        other_share=int(other_ns.sum()) / total_ns,
        phases=tuple(_phase(name, values[:, counted], samples.ranks, total_ns)
                     for name, values in samples.phases.items()))


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
    """Return for each rank, as text, the most that any of its records tells of each number."""
    most: dict[str, dict[str, int | str]] = defaultdict(dict)
    for rank, record in sorted(records, key=lambda item: item[0]):
        found, told = most[str(rank)], record.detail.get(MEMORY, {})
        for name, value in told.items():
            before = found.get(name, value)
            found[name] = max(value, before) if isinstance(value, int) else value
    return {rank: found for rank, found in most.items() if found} or None

"""Checks of one pass of one case: do its records agree, and are its stamps sound?

Every check yields `Problem`s; the first one rejects the case, all become findings. The codes are
listed with their tests in docs/checks.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from hpcbench.plan.case import Case
from hpcbench.reduce.intake import rank_list
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Pass, folded_durations_ns, is_timed
from hpcbench.trace.schema import NO_DEVICE_TIME, Flag

_NEVER_NS = np.iinfo(np.int64).max
_AGAIN = "run the case again"


@dataclass(frozen=True, slots=True)
class Problem:
    """Something wrong with a case; ``message`` ends with what to do about it."""

    code: str
    message: str




def check_records(
    case: Case, records: Pass, samples: CaseSamples | None
) -> Iterator[Problem]:
    """Yield what is wrong with the ok records of all ranks beside their stamps.

    ``samples`` are those of the records, None if their numbers differ or there are none.
    """
    yield from _parameters(case, records)
    yield from _iterations(case, records, samples)
    yield from _result_checks(case, records)


def check_stamps(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """Yield what is wrong with the stamps of one pass; ``samples`` holds this pass only."""
    for check in (_plausible, _ordered, _inside_window):
        problems = list(check(samples, records))
        yield from problems
        if problems:
            return  # what is no stamp is not in order either: say it once


def _parameters(case: Case, records: Pass) -> Iterator[Problem]:
    """HB115: the ranks ran the same thing, and the thing that was planned."""
    for name, found in (("mode", {rank: record.mode for rank, record in records.items()}),
                        ("device", {rank: record.device.partition(":")[0]
                                    for rank, record in records.items()})):
        planned = case.mode if name == "mode" else next(iter(found.values()))
        others = {rank: value for rank, value in found.items() if value != planned}
        if others:
            yield Problem("HB115", f"{name} is {_by_value(others)}, expected {planned}: the ranks "
                          f"did not run the same case; {_AGAIN}")


def _iterations(case: Case, records: Pass, samples: CaseSamples | None) -> Iterator[Problem]:
    """HB116: the same number of iterations everywhere, as planned or fewer, warm-ups first."""
    counts = {rank: len(record.samples) for rank, record in records.items()}
    planned = case.warmup + case.iterations
    if len(set(counts.values())) > 1:
        yield Problem("HB116", f"iterations differ: {_by_value(counts)}, planned {planned}: "
                      f"nothing is averaged over different iterations; {_AGAIN}")
        return
    flags = np.empty((1, 0), dtype=np.int64) if samples is None else samples.flags
    expected = np.arange(flags.shape[1]) < case.warmup
    warmups = (flags & Flag.WARMUP) != 0
    different = np.any(warmups != expected, axis=1) | (expected.size > planned)
    if different.any():
        row = int(np.argmax(different))
        yield Problem("HB116", f"rank {[*records][row]}: {warmups[row].sum()} warm-ups of "
                      f"{expected.size} iterations, planned {case.warmup} first ones of {planned}; "
                      f"{_AGAIN}")
        return
    if not np.any(~expected):
        yield Problem("HB116", f"no timed iteration, planned {case.iterations}; {_AGAIN}")


def _result_checks(case: Case, records: Pass) -> Iterator[Problem]:
    """HB126: the results were checked if the plan says so. A barrier has nothing to check."""
    unchecked = [rank for rank, record in records.items() if record.n_wrong < 0]
    if case.validate and case.workload.collective != "barrier" and unchecked:
        yield Problem("HB126", f"rank {rank_list(unchecked)}: results were not checked, but the "
                      f"plan says they are: a time without a right result does not count; {_AGAIN}")


def _by_value(values: Mapping[int, object]) -> str:
    """Return ``200 on rank 0, 2-3, 199 on rank 1``."""
    groups: dict[object, list[int]] = {}
    for rank, value in values.items():
        groups.setdefault(value, []).append(rank)
    return ", ".join(f"{value} on rank {rank_list(ranks)}" for value, ranks in groups.items())


def _plausible(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB120: every stamp was taken: none is zero, negative, or the largest number there is."""
    for name, stamps, lowest in (("start", samples.start_ns, 1), ("end", samples.end_ns, 1),
                                 ("device time", samples.device_ns, NO_DEVICE_TIME),
                                 ("flags", samples.flags, 0)):
        if stamps.min() >= lowest and stamps.max() < _NEVER_NS:
            continue
        bad = (stamps < lowest) | (stamps == _NEVER_NS)
        if place := _first(samples, bad):
            rank, row, at = place
            yield Problem("HB120", f"rank {rank} iteration {row}: {name} is {stamps[at]}, no "
                          f"stamp ({bad.sum()} of {bad.size} are like it); {_AGAIN}")


def _ordered(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB117: each iteration ends after it starts, and the next one starts after that."""
    start_ns, end_ns = samples.start_ns, samples.end_ns
    if place := _first(samples, end_ns < start_ns):
        rank, row, at = place
        yield Problem("HB117", f"rank {rank} iteration {row}: ends {start_ns[at] - end_ns[at]} ns "
                      f"before it starts: its clock stepped or the file is wrong; {_AGAIN}")
    next_ns = start_ns[:, 1:]
    if place := _first(samples, end_ns[:, :-1] > next_ns):
        rank, row, at = place
        yield Problem("HB117", f"rank {rank} iteration {row}: ends {end_ns[at] - next_ns[at]} ns "
                      "after the next one starts: the work was not complete when it was stamped; "
                      f"{_AGAIN}")


def _inside_window(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB118: all stamps, which are in order, lie in the window of the case on that rank."""
    begin_ns = np.array([[records[rank].begin_ns] for rank in samples.ranks])
    end_ns = np.array([[records[rank].end_ns] for rank in samples.ranks])
    if np.all(begin_ns <= samples.start_ns[:, :1]) and np.all(samples.end_ns[:, -1:] <= end_ns):
        return
    outside_ns = np.maximum(begin_ns - samples.start_ns, samples.end_ns - end_ns)
    if place := _first(samples, outside_ns > 0):
        rank, row, at = place
        yield Problem("HB118", f"rank {rank} iteration {row}: {outside_ns[at]} ns outside the "
                      f"case's own window: stamps of another case or clock; {_AGAIN}")


def _first(
    samples: CaseSamples, bad: npt.NDArray[np.bool_]
) -> tuple[int, int, tuple[int, int]] | None:
    """Return (rank, iteration, index) of the first bad entry, or None."""
    if not bad.any():
        return None
    row, column = (int(at) for at in np.argwhere(bad)[0])
    return samples.ranks[row], column, (row, column)


def timer_problem(samples: CaseSamples, resolution_ns: float) -> Problem | None:
    """HB119: return a note if the median duration is too short for the clock."""
    shortest_ns = folded_durations_ns(np.min, samples)[is_timed(samples)]
    if np.mean((shortest_ns >= 2 * resolution_ns) & (shortest_ns > 0)) > 0.5:
        return None  # most durations are as long, and so is their median
    durations_ns = (samples.end_ns - samples.start_ns)[:, is_timed(samples)]
    median_ns = float(np.median(durations_ns))
    if median_ns >= 2 * resolution_ns and median_ns > 0:
        return None
    return Problem("HB119", f"the median of {median_ns:g} ns is below twice the clock's resolution "
                   f"of {resolution_ns:g} ns: the time is not resolved; use larger sizes")

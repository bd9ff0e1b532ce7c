"""Checks of the stamps of one pass of one case: taken, in order, and possible."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from hpcbench.plan.case import Case
from hpcbench.reduce.checks import AGAIN, Problem, bad_entry, first_true
from hpcbench.reduce.clocks import GlobalStamps, RankClocks
from hpcbench.reduce.fold import Edges, folded_waits_ns, overtaking_ns, waits_ns
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Pass, is_timed
from hpcbench.trace.schema import NO_DEVICE_TIME

_NEVER_NS = np.iinfo(np.int64).max
EVENT_NS = 1000
"""Twice the resolution of CUDA events, 0.5 us (CUDA runtime, cudaEventElapsedTime)."""
RATE = 1e-3
"""More than any two clocks of a machine run apart."""


def check_stamps(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """Yield what is wrong with the stamps of one pass; ``samples`` holds this pass only."""
    for check in (_plausible, _ordered, _inside_window, _parts):
        problems = list(check(samples, records))
        yield from problems
        if problems:
            return  # what is no stamp is not in order either: say it once


def _plausible(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB120: every stamp was taken: none is zero, negative, or the largest number there is."""
    for name, stamps, lowest in (("start", samples.start_ns, 1), ("end", samples.end_ns, 1),
                                 ("enqueue time", samples.enqueue_ns, NO_DEVICE_TIME),
                                 ("device time", samples.device_ns, NO_DEVICE_TIME),
                                 ("flags", samples.flags, 0)):
        if stamps.min() >= lowest and stamps.max() < _NEVER_NS:
            continue
        bad = (stamps < lowest) | (stamps == _NEVER_NS)
        if at := first_true(bad):
            yield bad_entry("HB120", samples, at, f"{name} is {stamps[at]}, no stamp ({bad.sum()} "
                            f"of {bad.size} are like it)")


def _ordered(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB117: each iteration ends after it starts, and the next one starts after that."""
    start_ns, end_ns = samples.start_ns, samples.end_ns
    if at := first_true(end_ns < start_ns):
        yield bad_entry("HB117", samples, at, f"ends {start_ns[at] - end_ns[at]} ns before it "
                        "starts: its clock stepped or the file is wrong")
    next_ns = start_ns[:, 1:]
    if at := first_true(end_ns[:, :-1] > next_ns):
        yield bad_entry("HB117", samples, at, f"ends {end_ns[at] - next_ns[at]} ns after the next "
                        "one starts: the work was not complete when it was stamped")


def _inside_window(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB118: all stamps, which are in order, lie in the window of the case on that rank."""
    begin_ns = np.array([[records[rank].begin_ns] for rank in samples.ranks])
    end_ns = np.array([[records[rank].end_ns] for rank in samples.ranks])
    if np.all(begin_ns <= samples.start_ns[:, :1]) and np.all(samples.end_ns[:, -1:] <= end_ns):
        return
    outside_ns = np.maximum(begin_ns - samples.start_ns, samples.end_ns - end_ns)
    if at := first_true(outside_ns > 0):
        yield bad_entry("HB118", samples, at, f"{outside_ns[at]} ns outside the case's own window: "
                        "stamps of another case or clock")


def _parts(samples: CaseSamples, records: Pass) -> Iterator[Problem]:
    """HB129: neither issuing the work nor the work on the device takes longer than all of it."""
    for name, part_ns, event_ns, rate in (("enqueue time", samples.enqueue_ns, 0, 0),
                                          ("device time", samples.device_ns, EVENT_NS, RATE)):
        if part_ns.max() == NO_DEVICE_TIME:
            continue
        wait_ns = waits_ns(samples)
        spare_ns = event_ns + rate * wait_ns
        if at := first_true(part_ns > wait_ns + spare_ns):
            yield bad_entry("HB129", samples, at, f"{name} is {part_ns[at]} ns, but from start to "
                            f"end are only {wait_ns[at]} ns: the end was stamped before the work "
                            "was complete")


def check_causality(
    case: Case, samples: CaseSamples, stamps: GlobalStamps, common: Edges, clocks: RankClocks
) -> Iterator[Problem]:
    """HB124: nobody left before the last one had come. Between clocks it may be the clocks' error.

    On one clock the end was stamped too early: the case is rejected. Between clocks it says no
    more than that their bounds are wrong: a note, and global times are not used. ``common`` is what
    `edges` makes of ``stamps``.
    """
    excess_ns = overtaking_ns(case, common)
    at = first_true(excess_ns > 0)
    if at is None:
        return
    group, row = at
    size = case.group_size
    members = slice(group * size, (group + 1) * size)
    ranks = samples.ranks[members]
    left = ranks[int(np.argmin(stamps.end_ns[members, row]))]
    came = ranks[int(np.argmax(stamps.start_ns[members, row]))]
    same = clocks.ids[left] == clocks.ids[came]
    cause = (f"the end was stamped before the work was complete; {AGAIN}" if same else
             "their clocks are not as close as their models say: global times are not used; "
             "run again")
    yield Problem("HB124", f"rank {left} iteration {row}: left {case.workload.name} "
                  f"{excess_ns[group, row]:.0f} ns before rank {came} entered it, which its result "
                  f"depends on: {cause}", rejects=same)


def timer_problem(samples: CaseSamples, resolution_ns: float) -> Iterator[Problem]:
    """HB119: yield a note if the median duration is too short for the clock."""
    shortest_ns = folded_waits_ns(np.min, samples)[is_timed(samples)]
    if np.mean((shortest_ns >= 2 * resolution_ns) & (shortest_ns > 0)) > 0.5:
        return  # most durations are as long, and so is their median
    median_ns = float(np.median(waits_ns(samples)[:, is_timed(samples)]))
    if not (median_ns >= 2 * resolution_ns and median_ns > 0):
        yield Problem("HB119", f"the median of {median_ns:g} ns is below twice the clock's "
                      f"resolution of {resolution_ns:g} ns: the time is not resolved; use larger "
                      "sizes", rejects=False)

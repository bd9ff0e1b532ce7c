"""Checks of one pass of one case: do records agree with one another and the plan?
(docs/checks.md)"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from hpcbench.errors import job_command_line
from hpcbench.operations.collectives import Call, WireRate, collective_spec
from hpcbench.operations.peaks import known_link
from hpcbench.plan.case import Case
from hpcbench.records import dataclass
from hpcbench.reduce import fold
from hpcbench.reduce.results import CaseSamples
from hpcbench.reduce.stack import Pass, is_timed
from hpcbench.trace import schema
from hpcbench.units import by_value, digits, on_ranks, rank_list, to_gb_per_s

AGAIN = "run the case again"
RESUME = job_command_line("N", "run", "--resume", "FOLDER")
"""The command that continues a run: on N ranks as before, in its FOLDER."""
_NO_PHASES = "phases"
"""The key of a record's detail for the reason why durations do not match the samples."""
MOST_OF_PEAK = 1.02
"""Share of a declared peak that may be measured: clocks and rounding are not exact."""
MOST_OF_MEASURED = 1.05
"""Share of a ceiling of this run that may be reached: it was measured at another moment."""
_NEVER_NS = np.iinfo(np.int64).max
_EVENT_NS = 1000
"""Twice the resolution of CUDA events, 0.5 us (CUDA runtime, cudaEventElapsedTime)."""
_RATE = 1e-3
"""Two clocks of a machine drift apart by less than this share."""


@dataclass(frozen=True, slots=True)
class Violation:
    """A problem of a case and its remedy. Unless it ``rejects`` the case, nothing is left out.
    ``trace_missing``: a rank's trace is not there, but may still come."""

    code: str
    message: str
    rejects: bool = True
    trace_missing: bool = False


def first_true(bad: npt.NDArray[np.bool_]) -> tuple[int, int] | None:
    if not bad.any():
        return None
    row, column = np.argwhere(bad)[0]
    return int(row), int(column)


def bad_entry(code: str, samples: CaseSamples, at: tuple[int, int], what: str) -> Violation:
    return Violation(code, f"rank {samples.ranks[at[0]]} iteration {at[1]}: {what}; {AGAIN}")


def check_records(case: Case, records: Pass, samples: CaseSamples | None) -> Iterator[Violation]:
    """Yield the faults of ok records beside their stamps; ``samples`` is None if their numbers
    differ or there are none."""
    yield from _parameters(case, records)
    yield from _iterations(case, records, samples)
    yield from _stop_reasons(case, records)
    unchecked = [rank for rank, record in records.items()
                 if record.n_wrong < 0 and schema.HAS_NO_CHECK not in record.detail]
    if case.validate and case.workload.features.has_result and unchecked:
        yield Violation("HB126", f"rank {rank_list(unchecked)}: results were not checked, but the "
                      f"plan says they are: a time without a right result does not count; {AGAIN}")


def _parameters(case: Case, records: Pass) -> Iterator[Violation]:
    """HB115: the ranks ran the same thing, and the thing that was planned."""
    modes = {rank: record.mode for rank, record in records.items()}
    devices = {rank: record.device.partition(":")[0] for rank, record in records.items()}
    for name, values, planned in (("mode", modes, case.mode),
                                  ("device", devices, next(iter(devices.values())))):
        if others := {rank: value for rank, value in values.items() if value != planned}:
            yield Violation("HB115", f"{name} is {on_ranks(by_value(others))}, expected {planned}: "
                          f"the ranks did not run the same case; {AGAIN}")


def _iterations(case: Case, records: Pass, samples: CaseSamples | None) -> Iterator[Violation]:
    """HB116: as many rows on every rank, at most the planned ones, each kind in its place."""
    counts = {rank: len(record.samples) for rank, record in records.items()}
    is_checked = case.validate and any(
        schema.HAS_NO_CHECK not in record.detail for record in records.values())
    before, after = case.single_calls if is_checked else (0, 0)
    most = case.warmup + case.iterations + before + after
    if len(set(counts.values())) > 1:
        yield Violation("HB116", f"iterations differ: {on_ranks(by_value(counts))}, planned "
                      f"{'' if case.is_fixed else 'at most '}{most}: nothing is averaged over "
                      f"different iterations; {AGAIN}")
        return
    timed = max(counts.values()) - case.warmup - before - after
    if timed < 1 or samples is None:
        yield Violation("HB116", f"no timed iteration, planned {_planned(case)}; {AGAIN}")
        return
    planned_kinds = np.repeat(
        [int(schema.Flag.SINGLE | schema.Flag.WARMUP), int(schema.Flag.WARMUP), 0,
         int(schema.Flag.SINGLE)], [before, case.warmup, timed, after])
    kinds = samples.flags & schema.UNTIMED
    different = np.any(kinds != planned_kinds, axis=1) | (timed > case.iterations)
    if different.any():
        row = int(np.argmax(different))
        numbers = int(np.sum(kinds[row] & schema.Flag.WARMUP != 0)), int(np.sum(kinds[row] == 0))
        yield Violation("HB116", f"rank {samples.ranks[row]}: {numbers[0]} warm-ups and "
                      f"{numbers[1]} "
                      f"timed iterations of {kinds.shape[1]}, planned are "
                      f"{case.warmup + before} warm-ups, which come first, and {_planned(case)} "
                      f"timed ones; {AGAIN}")


def _planned(case: Case) -> str:
    return f"{case.iterations}" if case.is_fixed else f"{case.min_iterations} to {case.iterations}"


def _stop_reasons(case: Case, records: Pass) -> Iterator[Violation]:
    """HB133: one decision ended the case on all ranks."""
    reasons = by_value({rank: record.stop_reason for rank, record in records.items()})
    if len(reasons) > 1:
        yield Violation("HB133", f"the ranks stopped for different reasons: {on_ranks(reasons)}: "
                      f"they did not follow one decision; {AGAIN}")
        return
    (reason,) = reasons
    if reason and (reason not in schema.STOP_REASONS or (reason == "fixed") != case.is_fixed):
        yield Violation("HB133", f"stopped for the reason {reason!r}, but planned are "
                      f"{_planned(case)} iterations; {AGAIN}")


def check_samples(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """Yield the faults of stamps and phases of one pass; ``samples`` holds this pass only."""
    for check in (_plausible, _ordered, _inside_window, _parts):
        if problems := list(check(samples, records)):
            yield from problems
            break  # an invalid stamp is not in order either: report it once
    yield from _phases(samples, records)


def _plausible(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """HB120: every stamp was taken: none is zero, negative, or the largest number there is."""
    for name, stamps, lowest in (("start", samples.start_ns, 1), ("end", samples.end_ns, 1),
                                 ("enqueue time", samples.enqueue_ns, schema.NO_DEVICE_TIME),
                                 ("device time", samples.device_ns, schema.NO_DEVICE_TIME),
                                 ("flags", samples.flags, 0)):
        if stamps.min() >= lowest and stamps.max() < _NEVER_NS:
            continue
        bad = (stamps < lowest) | (stamps == _NEVER_NS)
        if at := first_true(bad):
            yield bad_entry("HB120", samples, at, f"{name} is {stamps[at]}, no stamp ({bad.sum()} "
                            f"of {bad.size} are like it)")


def _ordered(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """HB117: each iteration ends after it starts, and the next one starts after that."""
    start_ns, end_ns = samples.start_ns, samples.end_ns
    if at := first_true(end_ns < start_ns):
        yield bad_entry("HB117", samples, at, f"ends {start_ns[at] - end_ns[at]} ns before it "
                        "starts: its clock stepped or the file is wrong")
    next_ns = start_ns[:, 1:]
    if at := first_true(end_ns[:, :-1] > next_ns):
        yield bad_entry("HB117", samples, at, f"ends {end_ns[at] - next_ns[at]} ns after the next "
                        "one starts: the work was not complete when it was stamped")


def _inside_window(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """HB118: all stamps, which are in order, lie in the window of the case on that rank."""
    begin_ns = np.array([[records[rank].begin_ns] for rank in samples.ranks])
    end_ns = np.array([[records[rank].end_ns] for rank in samples.ranks])
    if np.all(begin_ns <= samples.start_ns[:, :1]) and np.all(samples.end_ns[:, -1:] <= end_ns):
        return
    outside_ns = np.maximum(begin_ns - samples.start_ns, samples.end_ns - end_ns)
    if at := first_true(outside_ns > 0):
        yield bad_entry("HB118", samples, at, f"{outside_ns[at]} ns outside the case's own window: "
                        "stamps of another case or clock")


def _parts(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """HB129: neither issuing the work nor the work on the device takes longer than all of it."""
    for name, part_ns, event_ns, rate in (("enqueue time", samples.enqueue_ns, 0, 0),
                                          ("device time", samples.device_ns, _EVENT_NS, _RATE)):
        if part_ns.max() == schema.NO_DEVICE_TIME:
            continue
        wait_ns = fold.sample_durations_ns(samples)
        spare_ns = event_ns + rate * wait_ns
        if at := first_true(part_ns > wait_ns + spare_ns):
            yield bad_entry("HB129", samples, at, f"{name} is {part_ns[at]} ns, but from start to "
                            f"end are only {wait_ns[at]} ns: the end was stamped before the work "
                            "was complete")


def _phases(samples: CaseSamples, records: Pass) -> Iterator[Violation]:
    """HB148: all ranks have the same phases, none is negative, and they fit into their step."""
    lost = [rank for rank, record in records.items() if _NO_PHASES in record.detail]
    if lost:
        yield Violation("HB148", f"rank {rank_list(lost)}: {records[lost[0]].detail[_NO_PHASES]}: "
                      f"which step a phase is of is unknown; {AGAIN}")
        return
    names = {rank: tuple(record.phases) for rank, record in records.items()}
    expected = next(iter(names.values()))
    others = [rank for rank, own in names.items() if own != expected]
    if others:
        yield Violation("HB148", f"rank {rank_list(others)} has other phases "
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
        yield from _too_long(samples, *((_EVENT_NS, _RATE) if by_events else (0, 0.0)))


def _too_long(samples: CaseSamples, spare_ns: int, rate: float) -> Iterator[Violation]:
    """On a device phases are read by events, on another clock than start and end."""
    step_ns = fold.sample_durations_ns(samples)
    phases_ns = np.asarray(sum(fold.durations(samples).values()), dtype=np.int64)
    most_ns = step_ns + spare_ns + rate * step_ns
    if at := first_true(phases_ns > most_ns):
        yield bad_entry("HB148", samples, at, "the phases together are "
                        f"{phases_ns[at] - step_ns[at]} ns longer than their step of {step_ns[at]} "
                        "ns: some time was counted twice, or was not in the step")
    for name, values in samples.phases.items():
        if name.startswith(schema.ARRIVAL) and (at := first_true(values > most_ns)):
            yield bad_entry("HB148", samples, at, f"{name} is after the end of its step: look at "
                            "the rank's clock")
            return


def check_causality(
    case: Case, samples: CaseSamples, stamps: fold.GlobalStamps, common: fold.Edges,
    clocks: fold.RankClocks,
) -> Iterator[Violation]:
    """HB124: no rank left before the last one entered. On one clock the case is rejected; between
    clocks their bounds are wrong, and global times are not used. ``common`` are the `edges` of
    ``stamps``."""
    excess_ns = fold.overtaking_ns(case, common)
    at = first_true(excess_ns > 0)
    if at is None:
        return
    group, row = at
    members = case.group_ranks[group]
    left = samples.ranks[members[int(np.argmin(stamps.end_ns[members, row]))]]
    came = samples.ranks[members[int(np.argmax(stamps.start_ns[members, row]))]]
    on_one_clock = clocks.ids[left] == clocks.ids[came]
    cause = (f"the end was stamped before the work was complete; {AGAIN}" if on_one_clock else
             "their clocks are not as close as their models say: global times are not used; "
             "run again")
    yield Violation("HB124", f"rank {left} iteration {row}: left {case.workload.name} "
                  f"{excess_ns[group, row]:.0f} ns before rank {came} entered it, which its result "
                  f"depends on: {cause}", rejects=on_one_clock)


def timer_problem(
    samples: CaseSamples, waits: fold.DurationExtremes, resolution_ns: float,
) -> Iterator[Violation]:
    shortest_ns = waits.shortest_ns[is_timed(samples)]
    if np.mean((shortest_ns >= 2 * resolution_ns) & (shortest_ns > 0)) > 0.5:
        return  # most durations are as long, and so is their median
    median_ns = float(np.median(fold.sample_durations_ns(samples)[:, is_timed(samples)]))
    if not (median_ns >= 2 * resolution_ns and median_ns > 0):
        yield Violation("HB119", f"the median of {median_ns:g} ns is below twice the clock's "
                      f"resolution of {resolution_ns:g} ns: the time is not resolved; use larger "
                      "sizes", rejects=False)


REPLICATED = "replicated"
"""The key of a record's detail for data that all ranks must have alike: ``of``, ``checksum``."""


def check_replicas(records: Pass) -> Iterator[Violation]:
    """HB127: yield which ranks have another checksum than most."""
    replicas = {rank: record.detail[REPLICATED] for rank, record in records.items()
                if REPLICATED in record.detail}
    names = {rank: f"{item['of']} {item['checksum']:08x}" for rank, item in replicas.items()}
    groups = sorted(by_value(names).values(), key=len)
    if len(groups) > 1:
        yield Violation("HB127", f"{_who_differs(groups, str(replicas[groups[0][0]]['of']))}: the "
                      "hardware may have changed data (silent data corruption), or the library "
                      "gives ranks different sums; run the case again, and see whether it is the "
                      "same rank", rejects=False)


def _who_differs(groups: Sequence[Sequence[int]], what: str) -> str:
    others, most = [rank for group in groups[:-1] for rank in group], groups[-1]
    if len(most) <= len(others):
        return (f"rank {rank_list([*others, *most])}: checksums of {what} differ, and no value is "
                "that of most ranks")
    differ = "differs" if len(others) == 1 else "differ"
    return (f"rank {rank_list(others)}: checksum of {what} {differ} from {len(most)} "
            f"other{'s' * (len(most) > 1)}")


@dataclass(frozen=True, slots=True)
class _Declared:
    """A peak in GB/s, and the key of the sweep file that declares it."""

    gb_per_s: float
    declared_by: str


def bandwidth_problem(
    case: Case, rate: WireRate | None, nodes: Mapping[int, str], hardware: Mapping[str, Any],
) -> Iterator[Violation]:
    """HB128: a note if a case moves more in a second than the declared peak."""
    peak = _limiting(case, nodes, hardware)
    moved = to_gb_per_s(rate.bytes_per_s) if rate else 0.0
    if rate is not None and peak is not None and moved > MOST_OF_PEAK * peak.gb_per_s:
        yield Violation(
            "HB128", f"the {rate.name} of {digits(moved, 4)} GB/s is more than the "
            f"{digits(peak.gb_per_s, 4)} GB/s that {peak.declared_by} allows: data stayed in a "
            "cache, a switch reduced them, or the declared peak is wrong", rejects=False)


def declared_peak(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> float | None:
    """Return the largest busbw in GB/s that the declared links allow, None if none is declared.
    Within a node the fastest link counts; between nodes the bytes of all groups that cross the
    boundary of the busiest node (`CollectiveSpec.crossing`), at the rate of its network. Among
    several collectives the one that crosses least counts."""
    peak = _limiting(case, nodes, hardware)
    return None if peak is None else peak.gb_per_s


def _limiting(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> _Declared | None:
    groups = [[nodes[rank] for rank in ranks] for ranks in case.group_ranks]
    peaks = []
    network, across_nodes = _between_nodes(hardware), [one for one in groups if len(set(one)) > 1]
    if network and across_nodes:
        share = _busiest_share(case.workload.features.calls, across_nodes)
        peaks += [] if share is None else [replace(network, gb_per_s=network.gb_per_s / share)]
    inside = _within_node(hardware)
    if inside and (len(across_nodes) < len(groups) or not network):
        peaks.append(inside)
    return min(peaks, default=None, key=lambda peak: peak.gb_per_s)


def _busiest_share(calls: Sequence[Call], groups: Sequence[Sequence[str]]) -> float | None:
    """Return the bytes that cross the busiest node's boundary in one direction over those that
    busbw counts, for the call with the least; None if unknown. ``groups`` have the nodes of their
    ranks."""
    shares = []
    for call in calls or (Call("all_reduce", "", None),):  # unknown calls count as a ring
        passing: dict[tuple[str, int], float] = defaultdict(float)
        for group in groups:
            crossing = collective_spec(call.collective).crossing_share(group)
            if crossing is None or call.split != "even":
                return None
            for node, both_ways in crossing.items():
                for way, share in enumerate(both_ways):
                    passing[node, way] += share
        shares.append(max(passing.values()))
    return min(shares)


def _within_node(hardware: Mapping[str, Any]) -> _Declared | None:
    peaks: Mapping[str, float] = hardware.get("link_peaks", {})
    if peaks:
        fastest = max(peaks, key=lambda name: peaks[name])
        return _Declared(peaks[fastest], f"hardware.link_peaks.{fastest}")
    return _by_name(hardware, of_network=False)


def _between_nodes(hardware: Mapping[str, Any]) -> _Declared | None:
    declared = hardware.get("network_bandwidth_gbps")
    if declared:
        return _Declared(float(declared) / 8, "hardware.network_bandwidth_gbps")
    return _by_name(hardware, of_network=True)


def _by_name(hardware: Mapping[str, Any], *, of_network: bool) -> _Declared | None:
    name = hardware.get("interconnect")
    link = known_link(name)
    if link is None or link.of_network is not of_network:
        return None
    return _Declared(link.gb_per_s, f"hardware.interconnect ({name})")

"""What links between ranks allow by their declared rates, and whether a case was faster (HB128)."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from hpcbench.operations.bandwidth import WireRate
from hpcbench.operations.call import Call
from hpcbench.operations.collectives import collective_spec
from hpcbench.operations.peaks import known_link
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import MOST_OF_PEAK, Problem
from hpcbench.units import to_gb_per_s


@dataclass(frozen=True, slots=True)
class _Declared:
    """A peak in GB/s, and the key of the sweep file that declares it."""

    gb_per_s: float
    declared_by: str


def bandwidth_problem(
    case: Case, rate: WireRate | None, nodes: Mapping[int, str], hardware: Mapping[str, Any],
) -> Iterator[Problem]:
    """HB128: yield a note if what a case moves in a second is above the declared peak.

    ``nodes`` maps each rank to its machine; ``hardware`` is the config's section.
    """
    peak = _limiting(case, nodes, hardware)
    moved = to_gb_per_s(rate.bytes_per_s) if rate else 0.0
    if rate is not None and peak is not None and moved > MOST_OF_PEAK * peak.gb_per_s:
        yield Problem(
            "HB128", f"the {rate.name} of {moved:.4g} GB/s is more than the {peak.gb_per_s:.4g} "
            f"GB/s that {peak.declared_by} allows: data stayed in a "
            "cache, a switch reduced them, or the declared peak is wrong", rejects=False)


def link_bytes_per_s(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> float | None:
    """Return `declared_peak` in bytes/s."""
    peak = declared_peak(case, nodes, hardware)
    return None if peak is None else peak * 1e9


def declared_peak(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> float | None:
    """Return the largest busbw in GB/s that the declared links allow, None if none is declared.

    Within a node the fastest declared link counts. Between nodes it is what must cross the boundary
    of the busiest node (`CollectiveSpec.crossing`), of all groups together, at the rate of its
    network: an algorithm that knows the nodes may exceed that rate in an all_reduce, and none can
    in an all_to_all. Of a case that calls several collectives the one that crosses least counts.
    None where what crosses is not known. An interconnect with the name of a link in the table of
    peaks is declared by that.
    """
    peak = _limiting(case, nodes, hardware)
    return None if peak is None else peak.gb_per_s


def _limiting(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> _Declared | None:
    """Return the peak that limits the slowest group of a case."""
    groups = [[nodes[rank] for rank in ranks] for ranks in case.group_ranks]
    peaks = []
    network, apart = _between_nodes(hardware), [one for one in groups if len(set(one)) > 1]
    if network and apart:
        share = _busiest_share(case.workload.collective_calls(), apart)
        peaks += [] if share is None else [replace(network, gb_per_s=network.gb_per_s / share)]
    inside = _within_node(hardware)
    if inside and (len(apart) < len(groups) or not network):
        peaks.append(inside)
    return min(peaks, default=None, key=lambda peak: peak.gb_per_s)


def _busiest_share(calls: Sequence[Call], groups: Sequence[Sequence[str]]) -> float | None:
    """Return the bytes that pass the busiest node's boundary, over those that busbw counts.

    ``groups`` have the nodes of their ranks, and run at the same time. That is in one direction,
    for the call with the least. None where that of some call is not known.
    """
    shares = []
    for call in calls or (Call("all_reduce", "", None),):  # what others call is taken for a ring
        passing: dict[tuple[str, int], float] = defaultdict(float)
        for group in groups:
            found = collective_spec(call.collective).crossing_share(group)
            if found is None or call.split != "even":
                return None
            for node, both_ways in found.items():
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
    """Return what the name of the interconnect declares of links within, or between nodes."""
    name = hardware.get("interconnect")
    known = known_link(name)
    if known is None or known.of_network is not of_network:
        return None
    return _Declared(known.gb_per_s, f"hardware.interconnect ({name})")

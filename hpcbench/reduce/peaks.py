"""HB128: is a bandwidth more than the hardware can do, as far as the config declares it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.operations.bandwidth import Bandwidth
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import Problem
from hpcbench.units import to_gb_per_s

MOST_OF_PEAK = 1.02
_BITS = 8


def bandwidth_problem(
    case: Case, rates: Bandwidth | None, nodes: Mapping[int, str], hardware: Mapping[str, Any],
) -> Iterator[Problem]:
    """Yield a note if the bus bandwidth of a case is above the declared peak.

    ``nodes`` maps each rank to its machine; ``hardware`` is the config's section.
    """
    peak = declared_peak(case, nodes, hardware)
    busbw = to_gb_per_s(rates.busbw_bytes_per_s) if rates else 0.0
    if peak is not None and busbw > MOST_OF_PEAK * peak:
        yield Problem(
            "HB128", f"the bus bandwidth of {busbw:.4g} GB/s is more than the {peak:.4g} GB/s that "
            "hardware.link_peaks and hardware.network_bandwidth_gbps allow: data stayed in a "
            "cache, a switch reduced them, or the declared peak is wrong", rejects=False)


def declared_peak(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> float | None:
    """Return the largest busbw in GB/s that the declared links allow, None if none is declared.

    Within a node the fastest declared link counts, of several groups the slowest one. A ring of n
    ranks moves (n-1)/n of the data, of which (N-1)/N has to leave a node of N. An algorithm that
    knows the nodes may therefore exceed the network's rate by their ratio.
    """
    size = case.group_size
    peaks = [_group_peak([nodes[rank] for rank in range(first, first + size)], hardware)
             for first in range(0, case.world_size, size)]
    known = [peak for peak in peaks if peak is not None]
    return min(known) if known else None


def _group_peak(nodes: list[str], hardware: Mapping[str, Any]) -> float | None:
    n, n_nodes = len(nodes), len(set(nodes))
    network = hardware.get("network_bandwidth_gbps")
    if n_nodes > 1 and network:
        return float(network) / _BITS * ((n - 1) / n) / ((n_nodes - 1) / n_nodes)
    return max(hardware.get("link_peaks", {}).values(), default=None)

"""HB128, HB146: is a rate more than the hardware can do, as far as the config declares it?"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from hpcbench.kinds.primitive.derive.rates import communication_rates, flop_rates
from hpcbench.operations.bandwidth import Bandwidth, bandwidth
from hpcbench.plan.case import Case
from hpcbench.plan.workload import Collective, Primitive, Training
from hpcbench.reduce.checks import Problem
from hpcbench.units import to_gb_per_s, to_tflop_per_s

MOST_OF_PEAK = 1.02
_BITS = 8


def peak_problems(
    case: Case, time_s: float, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> Iterator[Problem]:
    """Yield a note for each rate of a time that is above the declared peak.

    ``nodes`` maps each rank to its machine; ``hardware`` is the config's section.
    """
    rates, peak = _bandwidth(case, time_s), declared_peak(case, nodes, hardware)
    busbw = to_gb_per_s(rates.busbw_bytes_per_s) if rates else 0.0
    if peak is not None and busbw > MOST_OF_PEAK * peak:
        yield Problem(
            "HB128", f"the bus bandwidth of {busbw:.4g} GB/s is more than the {peak:.4g} GB/s that "
            "hardware.link_peaks and hardware.network_bandwidth_gbps allow: data stayed in a "
            "cache, a switch reduced them, or the declared peak is wrong", rejects=False)
    if isinstance(case.workload, Primitive):
        yield from _flops_problem(case.workload, time_s, hardware)


def _bandwidth(case: Case, time_s: float) -> Bandwidth | None:
    """Return the rates of a collective, or of a primitive that communicates and does no more.

    A training step tells no rate of a link: most of it is something else.
    """
    if isinstance(case.workload, Collective):
        return bandwidth(case.workload, case.world_size, time_s)
    if isinstance(case.workload, Training):
        return None
    return communication_rates(case.workload, time_s)


def _flops_problem(
    work: Primitive, time_s: float, hardware: Mapping[str, Any]
) -> Iterator[Problem]:
    """HB146: no rank does more products in its time than the declared peak of its device."""
    rates, peak = flop_rates(work, time_s), hardware.get("peak_flops", {}).get(work.dtype)
    if rates is None or peak is None or (
            rates.busiest_rank_flops_per_s <= MOST_OF_PEAK * peak):
        return
    found = to_tflop_per_s(rates.busiest_rank_flops_per_s)
    yield Problem(
        "HB146", f"{found:.4g} TFLOP/s of a rank are more than the {to_tflop_per_s(peak):.4g} that "
        f"hardware.peak_flops allows for {work.dtype}: it computes less than it is credited with, "
        "in another dtype (TF32 for fp32), or the declared peak is wrong", rejects=False)


def declared_peak(
    case: Case, nodes: Mapping[int, str], hardware: Mapping[str, Any]
) -> float | None:
    """Return the largest busbw in GB/s that the declared links allow, None if none is declared.

    Within a node: the fastest declared link. Between N nodes: of what a ring of n ranks moves,
    (n-1)/n of the data, only (N-1)/N has to cross the border of a node, so an algorithm that knows
    the nodes may exceed the network's rate by their ratio. Of several groups the slowest counts.
    """
    size = case.group_size
    peaks = [_group_peak([nodes[rank] for rank in range(first, first + size)], hardware)
             for first in range(0, case.world_size, size)]
    known = [peak for peak in peaks if peak is not None]
    return min(known) if known else None


def _group_peak(places: list[str], hardware: Mapping[str, Any]) -> float | None:
    n, n_nodes = len(places), len(set(places))
    network = hardware.get("network_bandwidth_gbps")
    if n_nodes > 1 and network:
        return float(network) / _BITS * ((n - 1) / n) / ((n_nodes - 1) / n_nodes)
    return max(hardware.get("link_peaks", {}).values(), default=None)

"""What links carry beside what they allow: wire rates, known links, and the share in the tables."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.kinds.collective.derive import CollectiveDeriver
from hpcbench.operations.collectives import Bandwidth, busbw_factor, collective_spec, wire_rate
from hpcbench.plan.case import Case
from hpcbench.reduce.checks import declared_peak
from hpcbench.reduce.results import CaseResult
from results_factory import make_case, ok

NODES = dict.fromkeys(range(8), "a")
APART = {rank: str(rank) for rank in range(8)}


@pytest.mark.parametrize(("ranks", "wire"), [(2, 1610.6127), (4, 1342.1773), (8, 1207.9596),
                                             (64, 1090.5190), (72, 1088.6549)])
def test_the_wire_rate_of_nvls(ranks: int, wire: float) -> None:
    """1 GiB in 1 ms, as nccl-tests' page on performance counts it."""
    rates = Bandwidth(2**30 / 1e-3, 0.0)
    found = wire_rate("all_reduce", rates, ranks, "NVLS")
    assert found and found.bytes_per_s / 1e9 == pytest.approx(wire, rel=1e-6)


@given(st.integers(2, 4096), st.floats(1e3, 1e13))
def test_a_switch_that_adds_up_saves_wire_from_4_ranks_on(ranks: int, algbw: float) -> None:
    rates = Bandwidth(algbw, algbw * float(busbw_factor("all_reduce", ranks) or 0))
    by_switch, by_ring = (wire_rate("all_reduce", rates, ranks, name) for name in ("NVLS", "RING"))
    assert by_switch and by_ring and by_ring.bytes_per_s == rates.busbw_bytes_per_s
    assert (by_switch.bytes_per_s < by_ring.bytes_per_s) == (ranks > 3)


@pytest.mark.parametrize(("collective", "algorithm"), [
    ("all_gather", "NVLS"), ("all_reduce", "RING + NVLS"), ("all_reduce", "NVLS_TREE"),
    ("all_reduce", None)])
def test_other_calls_carry_busbw(collective: str, algorithm: str | None) -> None:
    found = wire_rate(collective, Bandwidth(3.0, 5.0), 8, algorithm)
    assert found and found.bytes_per_s == 5
    assert wire_rate(collective, None, 8, algorithm) is None


@pytest.mark.parametrize(("collective", "library", "times"), [
    ("reduce_scatter", "gloo", 2), ("reduce_scatter", "nccl", 1), ("all_gather", "gloo", 1)])
def test_a_reduce_scatter_of_gloo_carries_an_all_reduce(
    collective: str, library: str, times: int,
) -> None:
    rates = Bandwidth(8.0, 8.0 * float(busbw_factor(collective, 4) or 0))
    found = wire_rate(collective, rates, 4, None, library)
    assert found and found.bytes_per_s == times * rates.busbw_bytes_per_s
    if times == 2:
        assert found.bytes_per_s == 8.0 * float(busbw_factor("all_reduce", 4) or 0)


@pytest.mark.parametrize(("hardware", "within", "between"), [
    ({"interconnect": "nvlink4"}, 450, None), ({"interconnect": "NDR"}, None, 50),
    ({"interconnect": "nvlink"}, None, None), ({"interconnect": None}, None, None),
    ({"interconnect": "nvlink4", "link_peaks": {"nvlink": 400}}, 400, 400),
    ({"interconnect": "ndr", "network_bandwidth_gbps": 1600}, None, 200)])
def test_an_interconnect_with_a_links_name_declares_it(
    hardware: Mapping[str, Any], within: float | None, between: float | None,
) -> None:
    case = make_case(world_size=8)
    assert declared_peak(case, NODES, hardware) == within
    expected = hardware.get("interconnect") == "nvlink4" and within or between
    assert declared_peak(case, APART, hardware) == pytest.approx(expected)


PLACES = st.lists(st.sampled_from("abcd"), min_size=2, max_size=12).filter(
    lambda nodes: len(set(nodes)) > 1)
"""The node of each rank, in any order: also cyclic, and uneven."""


def counted(collective: str, nodes: Sequence[str]) -> float:
    """Return the bytes over S through the busiest boundary, message by message.

    Nodes add up, and share, what their ranks have; then there is one message a node and hop.
    """
    n, names = len(nodes), list(dict.fromkeys(nodes))
    sent: list[tuple[str, str, float]] = []
    if collective == "all_to_all":
        sent = [(nodes[i], nodes[j], 1 / n) for i in range(n) for j in range(n)]
    if collective == "send_recv":
        sent = [(nodes[i], nodes[(i + 1) % n], 1.0) for i in range(n)]
    if collective in ("all_gather", "reduce_scatter"):
        sent = [(names[at - 1 - hop], names[(at - hop) % len(names)], nodes.count(names[at]) / n)
                for at in range(len(names)) for hop in range(len(names) - 1)]
    if collective == "all_reduce":
        sent = [(names[at - 1], names[at], 1 / len(names)) for at in range(len(names))
                for _ in range(2 * (len(names) - 1))]
    if collective == "broadcast":
        sent = [(one, other, 1.0) for one, other in pairwise(names)]
    busy: dict[tuple[str, str], float] = defaultdict(float)
    for source, target, share in sent:
        if source != target:
            busy[source, "out"] += share
            busy[target, "in"] += share
    return max(busy.values())


@pytest.mark.parametrize("collective", ["all_to_all", "send_recv", "all_gather", "reduce_scatter",
                                        "all_reduce", "broadcast"])
@given(nodes=PLACES)
def test_what_crosses_nodes_is_what_messages_add_up_to(
    collective: str, nodes: list[str],
) -> None:
    """Never more than some order of messages needs; no less where nodes are alike."""
    share = collective_spec(collective).crossing_share(nodes)
    assert share
    bound = max(max(both) for both in share.values()) * float(
        busbw_factor(collective, len(nodes)) or 0)
    needed = counted(collective, nodes)
    assert bound <= needed * (1 + 1e-9)
    if collective in ("all_to_all", "send_recv") or len({*Counter(nodes).values()}) == 1:
        assert bound == pytest.approx(needed)


def case_of(collective: str, world_size: int, **changes: Any) -> Case:
    case = make_case(world_size=world_size)
    return replace(case, workload=replace(case.workload, collective=collective, **changes))


@pytest.mark.parametrize(("collective", "n_nodes", "busbw"), [
    ("all_to_all", 2, 93.75), ("all_to_all", 4, 64.583), ("all_reduce", 2, 750),
    ("all_gather", 4, 516.67), ("reduce_scatter", 2, 750), ("broadcast", 2, 400),
    ("reduce", 4, 400), ("gather", 2, 750), ("scatter", 4, 516.67), ("send_recv", 2, 400)])
def test_limits_of_nodes_with_3200_gbit(collective: str, n_nodes: int, busbw: float) -> None:
    """8 ranks a node; of the 400 GB/s a rank of an all_to_all has its eighth."""
    case = case_of(collective, 8 * n_nodes)
    nodes = {rank: str(rank // 8) for rank in range(8 * n_nodes)}
    hardware = {"network_bandwidth_gbps": 3200, "link_peaks": {"nvlink": 450}}
    assert declared_peak(case, nodes, hardware) == pytest.approx(busbw, rel=1e-4)


def test_groups_share_the_network_of_their_nodes() -> None:
    """Two groups over the same two nodes at once have half of it each."""
    case = case_of("all_reduce", 8, groups=2)
    nodes = {rank: "ab"[rank % 2] for rank in range(8)}
    alone = declared_peak(case_of("all_reduce", 4),
                          {rank: "ab"[rank % 2] for rank in range(4)},
                          {"network_bandwidth_gbps": 80})
    assert alone == pytest.approx(10 * (3 / 4) / (1 / 2))
    assert declared_peak(case, nodes, {"network_bandwidth_gbps": 80}) == pytest.approx(alone / 2)


def test_rails_load_the_network_and_neighbours_do_not() -> None:
    """Of two nodes of four: groups of stride 4 have a rank on each, consecutive ones do not."""
    nodes, hardware = {rank: "ab"[rank // 4] for rank in range(8)}, {"network_bandwidth_gbps": 80}
    rails = case_of("all_reduce", 8, groups=4, group_stride=4)
    assert declared_peak(case_of("all_reduce", 8, groups=4), nodes, hardware) is None
    assert declared_peak(rails, nodes, hardware) == pytest.approx(10 / 4)


def measured(algorithm: str, busbw: float) -> CaseResult:
    """Return an all_reduce of 8 ranks with that busbw beside a declared 450 GB/s."""
    case = make_case(world_size=8)
    time_s = case.workload.size_bytes * 1.75 / busbw
    item = ok(case, time_s, library={"algorithm": algorithm})
    assert item.timing
    return replace(item, timing=replace(item.timing, link_bytes_per_s=450e9))


def share(item: CaseResult) -> float | None:
    value: float | None = CollectiveDeriver().derive([item], {})[item.case.case_id].get("of_link")
    return value


def test_the_share_of_a_link() -> None:
    assert share(measured("RING", 360e9)) == pytest.approx(0.8)
    assert share(measured("NVLS", 480e9)) == pytest.approx(480 / 1.75 * 9 / 8 / 450)
    assert share(ok(make_case())) is None


@pytest.mark.parametrize(("algorithm", "told"), [("RING", True), ("NVLS", False)])
def test_hb128_counts_what_the_links_carry(algorithm: str, told: bool) -> None:
    """480 GB/s of busbw on links of 450: more than a ring can, and what NVLS reaches."""
    item = measured(algorithm, 480e9)
    time_s = item.statistics.median_s if item.statistics else 0.0
    found = CollectiveDeriver().problems(item, time_s, NODES, {"link_peaks": {"nvlink": 450}})
    found = list(found)
    assert [problem.code for problem in found] == ["HB128"] * told
    assert all("450 GB/s that hardware.link_peaks.nvlink allows" in one.message for one in found)


@pytest.mark.parametrize(("hardware", "nodes", "says"), [
    ({"link_peaks": {"pcie": 2, "nvlink": 3}}, NODES, "3 GB/s that hardware.link_peaks.nvlink"),
    ({"interconnect": "pcie3"}, NODES, "16 GB/s that hardware.interconnect (pcie3)"),
    ({"network_bandwidth_gbps": 8, "link_peaks": {"nvlink": 3}}, APART,
     "1 GB/s that hardware.network_bandwidth_gbps"),
    ({"interconnect": "hdr"}, APART, "25 GB/s that hardware.interconnect (hdr)")])
def test_hb128_names_the_peak_that_was_exceeded(
    hardware: Mapping[str, Any], nodes: Mapping[int, str], says: str,
) -> None:
    item = measured("RING", 480e9)
    (found,) = CollectiveDeriver().problems(
        item, item.statistics.median_s if item.statistics else 0.0, nodes, hardware)
    assert f"is more than the {says} allows" in found.message

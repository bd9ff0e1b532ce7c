"""Messages between every two ranks: their rounds, what is planned, derived, shown and blamed."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from figure_texts import figure_of, texts_of
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.hardware.derive import (
    Distance,
    HardwareDeriver,
    PairsRecord,
    observed,
)
from hpcbench.kinds.hardware.plan.pairs import Pairs, pairs_of, peer_in, rounds, slots
from hpcbench.kinds.hardware.plan.planner import HardwarePlanner
from hpcbench.kinds.hardware.present import HardwarePresenter
from hpcbench.launch.verdict import Evidence, RankOutcome, judge
from hpcbench.operations.collectives import COLD_BYTES, MOST_COLD_BYTES
from hpcbench.plan.case import Case, Plan
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.kind_facts import MachineRate
from hpcbench.reduce.results import CaseResult, CaseSamples
from hpcbench.reduce.roofline import machine_rates
from hpcbench.reduce.stack import Use
from hpcbench.reduce.topology import GpuMatrix, RankPlace, Topology
from hpcbench.views.chart import HeatMap
from hpcbench.views.table import Range
from results_factory import make_case, make_results, make_samples, ok

RANKS = st.integers(0, 40)
PRESENTED = HardwarePresenter()


@given(RANKS)
def test_every_two_ranks_meet_once_in_disjoint_rounds(ranks: int) -> None:
    met = [pair for one in rounds(ranks) for pair in one]
    assert sorted(met) == [(low, high) for low in range(ranks) for high in range(low + 1, ranks)]
    for one in rounds(ranks):
        inside = [rank for pair in one for rank in pair]
        assert len(set(inside)) == len(inside) == ranks - ranks % 2
    assert len(rounds(ranks)) == max(ranks - 1 + ranks % 2, 0) * (ranks > 1)


@given(st.integers(2, 20))
def test_alone_pairs_stay_in_the_order_of_their_rounds(ranks: int) -> None:
    alone, together = slots(ranks, at_once=False), slots(ranks, at_once=True)
    assert [(one.round, pair) for one in together for pair in one.pairs] == [
        (one.round, *one.pairs) for one in alone]


def test_who_meets_a_rank() -> None:
    assert [peer_in(((0, 2), (1, 3)), rank) for rank in range(5)] == [2, 3, 0, 1, None]


def planned(ranks: int = 4, **block: Any) -> Plan:
    blocks = [{"kind": "hardware", "test": "pairs", **block}]
    return make_plan(check_config({"name": "pairs", "benchmarks": blocks}, "test"), ranks)


def test_a_block_without_keys_is_latency_and_bandwidth() -> None:
    works = [pairs_of(case) for case in planned().cases]
    assert [(work.what, work.message_bytes) for work in works] == [
        ("latency", 8), ("bandwidth", 2**20)]
    assert all(work.at_once and work.direction == "one way" for work in works)


@pytest.mark.parametrize(("block", "ranks", "words"), [
    ({}, 1, "pairs needs two ranks"),
    ({"size": 0}, 4, "at least one byte"),
    ({"backend": "mpi/direct"}, 4, "take mpi"),
    ({"backend": "gloo", "device": "cuda"}, 4, "gloo has no send_recv on cuda"),
    ({"backend": "nccl", "cuda_graph": True}, 4, "barrier"),
])
def test_what_cannot_run_states_why(block: dict[str, Any], ranks: int, words: str) -> None:
    for case in planned(ranks, **block).cases:
        assert case.skip is not None and words in case.skip


@pytest.mark.parametrize("block", [
    {"what": "speed"}, {"direction": "left"}, {"messages": 0}, {"shape": "512"}])
def test_bad_keys_are_refused(block: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=next(iter(block))):
        planned(**block)


WORK = Pairs("latency", "one way", True, 8, 10)


def made(work: Pairs, ranks: int = 3, **changes: Any) -> Case:
    return replace(make_case(world_size=ranks, iterations=4, warmup=1, **changes),
                   kind="hardware", workload=work)


def measured(work: Pairs, ranks: int = 3, **changes: Any) -> tuple[CaseResult, CaseSamples]:
    """Return a case in which rank r took (r + 1) x 1000 ns a message with everybody."""
    case = made(work, ranks, **changes)
    samples = make_samples(case, 1e-3)
    count = samples.start_ns.shape[1]
    times = {f"round_{number + 1}": np.zeros((ranks, count), dtype=np.int64)
             for number in range(len(rounds(ranks)))}
    for number, pairs in enumerate(rounds(ranks)):
        for rank in (rank for pair in pairs for rank in pair):
            times[f"round_{number + 1}"][rank] = 1000 * (rank + 1) * work.messages
    use = np.full(count, Use.COUNTED, dtype=np.int64)
    use[0] = Use.WARMUP
    for values in times.values():
        values[:, 0] *= 100  # of a warm-up, which does not count
    nodes = {str(rank): {"node": f"node{rank // 2}"} for rank in range(ranks)}
    item = replace(ok(case, 1e-3), detail=nodes)
    return item, replace(samples, phases=times, use=use)


def test_a_latency_is_half_a_round_trip_by_the_clock_of_its_rank() -> None:
    record = observed(*measured(WORK))["pairs"]
    own = [0.5e-6, 1e-6, 1.5e-6]
    assert [[None if value is None else pytest.approx(value) for value in row]
            for row in record.matrix] == [
        [None if rank == peer else own[rank] for peer in range(3)] for rank in range(3)]
    assert [(one.name, one.links) for one in record.distances] == [
        ("same node", 2), ("other node", 4)]
    other = record.distances[1]
    assert (other.worst_from, other.median) == (2, pytest.approx(1.25e-6))


def test_distances_are_the_nearest_that_is_known() -> None:
    item, samples = measured(WORK, ranks=6)  # two ranks a node
    links = (("X", "NV4"), ("NV4", "X"))
    matrix = GpuMatrix(("a", "b"), (None, None), (None, None), links)
    switches = [("top", "s0")] * 4 + [None] * 2
    places = tuple(RankPlace(rank, f"node{rank // 2}", None, None, switches[rank],
                             0 if rank < 2 else None, rank if rank < 2 else None, None)
                   for rank in range(6))
    known = replace(samples, topology=Topology(places, (matrix,)))

    def links_by_distance(device: str, **told: Any) -> dict[str, int]:
        found = observed(replace(item, device=device, **told), known)["pairs"].distances
        return {one.name: one.links for one in found}

    assert links_by_distance("cuda:0") == {
        "same board": 2, "same node": 4, "same switch": 8, "other node": 16}
    assert links_by_distance("cpu") == {"same node": 6, "same switch": 8, "other node": 16}
    moved = {rank: {"node": f"new-{told['node']}"} for rank, told in item.detail.items()}
    assert links_by_distance("cuda:0", detail=moved) == {"same node": 6, "other node": 24}
    partly = {rank: told for rank, told in item.detail.items() if rank != "5"}
    assert links_by_distance("cpu", detail=partly)["distance unknown"] == 10


def test_both_at_once_a_message_takes_one_exchange_and_bandwidth_counts_bytes() -> None:
    both = observed(*measured(replace(WORK, direction="both at once")))["pairs"]
    assert both.matrix[0][1] == pytest.approx(1e-6)
    wide = observed(*measured(replace(WORK, what="bandwidth", message_bytes=1000)))["pairs"]
    assert wide.matrix[0][1] == pytest.approx(1e9) and wide.matrix[2][0] == pytest.approx(1e9 / 3)
    assert (wide.distances[1].worst_from, wide.distances[1].least) == (2, pytest.approx(1e9 / 3))


def test_of_calls_back_to_back_each_counts_and_of_many_ranks_the_summary_stays() -> None:
    two = observed(*measured(WORK, mode="pipelined", batch=2))["pairs"]
    assert two.matrix[0][1] == pytest.approx(0.25e-6)
    many = observed(*measured(WORK, ranks=65))["pairs"]
    assert not many.matrix and sum(one.links for one in many.distances) == 65 * 64


def test_without_samples_that_count_there_is_nothing() -> None:
    item, samples = measured(WORK)
    unused = np.full(samples.start_ns.shape[1], Use.WARMUP, dtype=np.int64)
    assert observed(item, replace(samples, use=unused)) == {}
    assert observed(item, replace(samples, phases={})) == {}


def test_tables_and_heat_maps_name_the_worst_link() -> None:
    item, samples = measured(WORK)
    derived = {item.case.case_id: observed(item, samples)}
    (table,) = PRESENTED.tables("block", [item], derived)
    rows = [dict(zip([column.name for column in table.columns], row.cells, strict=True))
            for row in table.groups[0].rows]
    assert [row["distance"] for row in rows] == ["same node", "other node"]
    assert rows[1]["worst"] == "2 to 0"
    *_, chart = PRESENTED.overviews([item], derived)
    assert isinstance(chart, HeatMap)
    shown = texts_of(figure_of(chart, make_results((item,))))
    for words in ("latency between every two ranks", "other rank", "8 B"):
        assert words in shown
    found = PRESENTED.row(item, derived[item.case.case_id])
    assert set(found) <= {*PRESENTED.fields} and found["worst_link"][1] == "2 to 0"


@pytest.mark.parametrize("greatest_s", [10.0004e-6, 10.00001e-6, 10.1e-6, 90e-6])
def test_no_two_ticks_of_the_colours_read_the_same(greatest_s: float) -> None:
    item, samples = measured(WORK)
    *_, chart = PRESENTED.overviews([item], {item.case.case_id: observed(item, samples)})
    assert isinstance(chart, HeatMap)
    values = np.where(np.eye(3), np.nan, [[10e-6], [10e-6], [greatest_s]])
    figure = figure_of(replace(chart, values=values, limits=Range(10e-6, greatest_s)),
                       make_results((item,)))
    figure.canvas.draw()
    texts = [label.get_text() for label in figure.axes[1].get_yticklabels()]
    assert len({*texts}) == len(texts) > 2, texts


def test_a_case_that_failed_has_a_row_without_links() -> None:
    item = replace(ok(made(WORK), 1e-3), status="failed",
                   statistics=None)
    (table,) = PRESENTED.tables("block", [item], {})
    assert len(table.groups[0].rows) == 1
    shown = PRESENTED.overviews([item], {item.case.case_id: {
        "pairs": PairsRecord((), (Distance("same node", 2, 1.0, 1.0, 1.0, 0, 1, 2),))}})
    assert not any(isinstance(one, HeatMap) for one in shown)


@pytest.mark.parametrize(("at_once", "step", "words"), [
    (True, 0, ""), (True, 1, "before round 1 of 3"),
    (True, 4, "in round 2 of 3 with rank {other}"),
    (False, 7, "before round 2 of 3, pair of ranks {second}"),
    (False, 8, "in round 2 of 3, pair of ranks {second}"),
])
def test_where_a_rank_is(at_once: bool, step: int, words: str) -> None:
    low, high = rounds(4)[1][1]
    found = replace(WORK, at_once=at_once).step_words(low, 4, step)
    assert found == words.format(other=high, second=f"{low} and {high}")


def test_a_hang_names_the_pair_that_others_wait_for() -> None:
    doing = ["in round 2 of 3 with rank 2", "before round 3 of 3", "in round 2 of 3 with rank 0",
             "before round 3 of 3"]
    evidence = [Evidence(rank, RankOutcome.STUCK, "last seen", 2, 5, expired=True,
                         step=5 - text.startswith("in"), doing=text)
                for rank, text in enumerate(doing)]
    verdict = judge(evidence, 4.0, "pairs")
    assert verdict.status == "timeout"
    assert verdict.reason.endswith(
        "rank 0 in round 2 of 3 with rank 2, rank 2 in round 2 of 3 with rank 0")


def test_a_bandwidth_is_none_of_a_cache_unless_it_is_asked_for() -> None:
    assert [pairs_of(case).cache for case in planned().cases] == ["warm", "cold"]
    both = planned(what="bandwidth", cache=["cold", "warm"], size=["1", "1MiB"]).cases
    assert [pairs_of(case).cache for case in both] == ["cold", "warm"] * 2
    assert len({case.case_id for case in both}) == len({case.label for case in both}) == 4
    for cold, warm in zip(both[::2], both[1::2], strict=True):
        assert cold.memory_bytes >= 2 * COLD_BYTES > warm.memory_bytes
    on_gpus = planned(what="bandwidth", backend="nccl", device="cuda").cases
    assert on_gpus[0].memory_bytes >= 2 * MOST_COLD_BYTES


def test_what_cannot_fit_is_a_skip() -> None:
    blocks = [{"kind": "hardware", "test": "pairs", "what": "bandwidth", "size": "256MiB"}]
    config = check_config({"name": "pairs", "benchmarks": blocks,
                           "hardware": {"memory_per_device_gb": 1}}, "test")
    (case,) = make_plan(config, 2).cases
    assert case.skip is not None and "memory" in case.skip


def test_pairs_of_cold_messages_are_other_cases() -> None:
    warm = replace(WORK, what="bandwidth")
    stored = warm.to_json()
    assert HardwarePlanner().workload_from_json(stored) == warm
    cold = replace(warm, cache="cold")
    assert HardwarePlanner().workload_from_json(cold.to_json()) == cold
    assert cold.identity() != warm.identity()


def test_the_measured_link_is_that_of_cold_messages_where_there_are_any() -> None:
    found = {}
    for cache, size in (("warm", 4000), ("cold", 1000)):
        item, samples = measured(replace(WORK, what="bandwidth", message_bytes=size, cache=cache))
        item = replace(item, case=replace(item.case, case_id=cache))
        found[cache] = item, observed(item, samples)["pairs"]
    warm, cold = ([fact for fact in HardwareDeriver().facts(
        item, {"pairs": record}, lambda: None) if isinstance(fact, MachineRate)]
        for item, record in found.values())
    links = machine_rates(cold)["links"]
    assert machine_rates([*warm, *cold])["links"] == links != machine_rates(warm)["links"]
    assert machine_rates(warm)["links"]

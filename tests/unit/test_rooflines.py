"""Ceilings, what binds below them, the performance score, and how they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from figure_texts import figure_of, texts_of
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.collective.derive import CollectiveDeriver
from hpcbench.kinds.hardware.derive import (
    Distance,
    HardwareDeriver,
    PairsRecord,
    own_rates,
)
from hpcbench.kinds.hardware.plan.gemm import Gemm
from hpcbench.kinds.hardware.plan.pairs import Pairs
from hpcbench.kinds.hardware.plan.test import Storage, Stream
from hpcbench.kinds.hardware.present import HardwarePresenter
from hpcbench.kinds.primitive.derive import PrimitiveDeriver
from hpcbench.kinds.primitive.plan.demands import product_bytes
from hpcbench.kinds.training.derive.deriver import TrainingDeriver
from hpcbench.kinds.training.derive.rates import shown_definition
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.presenter import TrainingPresenter
from hpcbench.reduce.kind_facts import MachineRate, RankRates
from hpcbench.reduce.metric import Records
from hpcbench.reduce.results import CaseResult
from hpcbench.reduce.roofline import (
    COMMUNICATION,
    COMPUTE,
    DECLARED,
    LATENCY,
    MEASURED,
    MEMORY,
    Ceiling,
    Demand,
    Roofline,
    ceilings_of,
    machine_rates,
    measured_link,
    roofline,
)
from hpcbench.views.chart import Chart
from hpcbench.views.table import Table
from results_factory import (
    make_case,
    make_primitive,
    make_primitive_case,
    make_results,
    make_samples,
    ok,
)
from training_results import trained, training_case

PRODUCTS = Ceiling(COMPUTE, 1e11, MEASURED, "fp32 products")
BYTES = Ceiling(MEMORY, 1e10, MEASURED, "memory")
LINK = Ceiling(COMMUNICATION, 1e9, MEASURED, "a pair of ranks by gloo")
MESSAGE = Ceiling(LATENCY, 1e4, MEASURED, "small messages of a pair by gloo")
ALL = (PRODUCTS, BYTES, LINK, MESSAGE)
MEASURES = {"measured": {
    "flops": {"cpu fp32": 1e11}, "memory": {"cpu": 1e10}, "links": {"cpu gloo 2": 1e9},
    "messages": {"cpu gloo 2": 1e4}}}
"""Section hardware of a run that measured the same ceilings."""


def found(demand: Demand, time_s: float, *ceilings: Ceiling) -> Roofline:
    one = roofline(demand, time_s, ceilings or ALL)
    assert one is not None
    return one


@pytest.mark.parametrize(("demand", "time_s", "bound_by", "score"), [
    (Demand(1e9, 1e6), 0.02, COMPUTE, 0.5), (Demand(1e6, 1e8), 0.02, MEMORY, 0.5),
    (Demand(1e6, 0, 1e7, 1), 0.04, COMMUNICATION, 0.25),
    (Demand(0, 0, 64, 3), 1e-3, LATENCY, 0.3), (Demand(0, 0, 64, 1), 0.1, LATENCY, 1e-3),
    (Demand(1e6, 1e3), 1e-2, LATENCY, 1e-3)])
def test_the_longest_least_time_binds(
    demand: Demand, time_s: float, bound_by: str, score: float,
) -> None:
    one = found(demand, time_s)
    assert (one.bound_by, one.score) == (bound_by, pytest.approx(score))


def test_the_evidence_has_the_numbers_and_the_denominator() -> None:
    one = found(Demand(1e9, 1e6), 0.02)
    assert one.evidence == ("memory 100 us; compute at least 10 ms for 1 GFLOP at 0.1 TFLOP/s of "
                            "fp32 products, measured: 50 % of 20 ms")
    little = found(Demand(1e6, 1e3), 1e-2)
    assert "no ceiling explains more" in little.evidence
    assert little.score_of == PRODUCTS


def test_without_a_ceiling_that_is_needed_there_is_no_score() -> None:
    one = found(Demand(1e9, 1e6, 1e6, 1), 0.02, PRODUCTS)
    assert one.bound_by is None and one.score is None
    assert "memory (test stream or hardware.memory_bandwidth_gb_per_s)" in one.evidence
    assert "communication (test pairs of its backend or hardware.link_peaks)" in one.evidence
    assert roofline(Demand(1e9), 0.02, ()) is None
    assert roofline(Demand(), 0.02, ALL) is None
    assert roofline(Demand(1e9), 0.0, ALL) is None


def test_without_knowing_what_is_needed_there_is_no_score() -> None:
    one = found(Demand(1e9, None), 0.02)
    assert one.bound_by is None and one.score is None
    assert one.evidence == "unknown: its memory is not counted"


def test_a_ceiling_that_was_exceeded_is_none_but_caches_are_faster_than_memory() -> None:
    over = found(Demand(1e9, 1e6), 0.009)
    assert over.score is None and "no ceiling here" in over.evidence
    near = found(Demand(1e9, 1e6), 0.0099)
    assert near.score == 1
    cached = found(Demand(1e9, 1e9), 0.02)
    assert (cached.bound_by, cached.score) == (COMPUTE, pytest.approx(0.5))
    overlapped = found(Demand(1e9, 1e6, 1e6, 1000), 0.02)
    assert (overlapped.bound_by, overlapped.score) == (COMPUTE, pytest.approx(0.5))


def test_measured_goes_before_declared_which_stands_beside() -> None:
    peak = Ceiling(COMPUTE, 2e11, DECLARED, "fp32 products")
    one = found(Demand(1e9, 1e6), 0.02, PRODUCTS, peak, BYTES)
    assert (one.score, one.of_declared) == (pytest.approx(0.5), pytest.approx(0.25))
    alone = found(Demand(1e9, 1e6), 0.02, peak, BYTES)
    assert alone.score == pytest.approx(0.25) and alone.of_declared is None


@given(st.floats(0, 1e15), st.floats(0, 1e12), st.floats(0, 1e12), st.integers(0, 99),
       st.floats(1e-7, 1e3))
def test_a_score_is_a_share(
    flops: float, moved: float, sent: float, messages: int, time_s: float,
) -> None:
    one = roofline(Demand(flops, moved, sent, messages), time_s, ALL)
    if one is not None and one.score is not None:
        assert 0 <= one.score <= 1
        assert one.bound_by is not None and one.score_of in ALL


def test_ceilings_are_of_the_cases_device_type_and_backend() -> None:
    item = ok(make_case(world_size=2))
    declared = {"peak_flops": {"fp32": 2e11, "fp8": 1e15}, "memory_bandwidth_gb_per_s": 20}
    of_both = ceilings_of(item, "fp32", {**declared, **MEASURES})
    assert [(one.limit, one.source, one.rate) for one in of_both] == [
        (COMPUTE, MEASURED, 1e11), (MEMORY, MEASURED, 1e10), (COMMUNICATION, MEASURED, 1e9),
        (LATENCY, MEASURED, 1e4), (COMPUTE, DECLARED, 2e11), (MEMORY, DECLARED, 20e9)]
    assert ceilings_of(item, "fp32", {**declared, "device_type": "cuda"}) == ()
    (eight, _) = ceilings_of(item, "fp8_e4m3", declared)
    assert eight.rate == 1e15
    other = ok(make_case(world_size=2, backend="mpi"))
    assert {one.limit for one in ceilings_of(other, "bf16", MEASURES)} == {MEMORY}


def test_a_link_is_that_of_the_greatest_distance_among_the_ranks() -> None:
    links = {"measured": {"links": {"cpu gloo 2": 4e9, "cpu gloo 5": 1e9}}}
    rates = [measured_link(ok(make_case(world_size=ranks)), links) for ranks in (1, 2, 4, 8)]
    assert rates == [None, 4e9, 4e9, 1e9]
    for stride, rate in ((1, 4e9), (4, 1e9)):  # neighbours, or ranks of two nodes
        case = make_case(world_size=8)
        work = replace(case.workload, groups=4, group_stride=stride)  # type: ignore[type-var]
        assert measured_link(ok(replace(case, workload=work)), links) == rate


def of_machine(work: Any, median_s: float, ranks: int = 2, **changes: Any) -> CaseResult:
    case = make_case(world_size=ranks, **changes)
    return ok(replace(case, kind="hardware", workload=work,
                      case_id=f"{work} {ranks}"), median_s)


def machine() -> tuple[list[CaseResult], Records]:
    """Return products and triads of 1 and 2 ranks; a rank alone is twice as fast."""
    told = {"0": {"stream": {"array_bytes": 10**7}}}
    items = [of_machine(Gemm("fp32", size, size, size), 2 * size**3 / rate, ranks)
             for ranks, rates in ((1, (1e11, 2e11)), (2, (5e10, 1e11)))
             for size, rate in zip((256, 512), rates, strict=True)]
    items += [replace(of_machine(Stream("fp64", kernel, 0, 0), moved / 2e10, ranks), detail=told)
              for ranks in (1, 2) for kernel, moved in (("copy", 4e7), ("triad", 3e7))]
    return items, HardwareDeriver().derive(items, {"memory_bandwidth_gb_per_s": 40})


def test_products_are_beside_what_as_many_ranks_reached() -> None:
    """The best of them has no score of its own rate; of a declared one it has."""
    items, records = machine()
    products = [item.case.case_id for item in items if item.case.workload.test == "gemm"]
    bound = [records[case_id]["roofline"] for case_id in products]
    assert [one and (one.bound_by, one.score) for one in bound] == 2 * [
        (COMPUTE, pytest.approx(0.5)), (COMPUTE, None)]
    declared = HardwareDeriver().derive(items, {"peak_flops": {"fp32": 8e11}})
    scores = [declared[case_id]["performance_score"] for case_id in products]
    assert scores == [pytest.approx(share) for share in (0.5, 0.25, 0.5, 0.125)]
    assert bound[0] and bound[0].flop_per_memory_byte == pytest.approx(2 * 256**3 / (12 * 256**2))


def with_device_time(item: CaseResult, device_s: float) -> CaseResult:
    assert item.timing is not None
    return replace(item, device="cuda:0", timing=replace(item.timing, device_s=device_s))


def test_rates_are_by_the_devices_own_time_where_it_has_one() -> None:
    """4096^3 in bf16 takes an H100 about 190 us; launch and wait add 20 us by the host's clock."""
    product = of_machine(Gemm("bf16", 4096, 4096, 4096), 210e-6)
    triad = replace(of_machine(Stream("fp32", "triad", 0, 0), 190e-6),
                    detail={"0": {"stream": {"array_bytes": 2**28}}})
    items = [with_device_time(product, 190e-6), with_device_time(triad, 170e-6)]
    hardware = {"peak_flops": {"bf16": 990e12}}
    on_gpu = [HardwareDeriver().derive(items, hardware)[item.case.case_id] for item in items]
    by_host = HardwareDeriver().derive([product], {})[product.case.case_id]
    assert on_gpu[0]["rank_flops_per_s"] == pytest.approx(2 * 4096**3 / 190e-6)
    assert on_gpu[0]["roofline"].time_s == 190e-6
    assert on_gpu[0]["performance_score"] == pytest.approx(2 * 4096**3 / 190e-6 / 990e12)
    assert on_gpu[1]["rank_bytes_per_s"] == pytest.approx(3 * 2**28 / 170e-6)
    assert by_host["rank_flops_per_s"] == pytest.approx(2 * 4096**3 / 210e-6)
    assert [values["rate_clock"] for values in (*on_gpu, by_host)] == ["device", "device", "host"]


def test_rates_of_files_are_of_a_call_and_of_all_ranks() -> None:
    told = {"folder": "/scratch", "file_system": "ext4", "cold": 1, "warm": 0}
    item = replace(of_machine(Storage("read", 2**20, "/scratch"), 1e-3, 4), detail={
        "0": {"storage": told}, "1": {"storage": {**told, "cold": 0, "warm": 1}}})
    derived = HardwareDeriver().derive([item], {})
    row = HardwarePresenter().row(item, derived[item.case.case_id])
    assert [row[name] for name in (
        "storage_rank_gb_per_s", "storage_all_ranks_gb_per_s", "folder", "file_system", "cache")
    ] == [2**20 / 1e6, 4 * 2**20 / 1e6, "/scratch", "ext4", "mixed"]


@pytest.mark.parametrize("calls", [1, 4])
def test_a_ranks_own_rate_is_by_the_same_clock_and_of_one_call(calls: int) -> None:
    samples = make_samples(make_case(world_size=2), 1e-3)
    on_gpu = replace(samples, device_ns=np.full(samples.start_ns.shape, 500_000, np.int64))
    assert own_rates(1.0, on_gpu, calls, on_device=True) == pytest.approx([2000 * calls] * 2)
    by_host = own_rates(1.0, samples, calls)
    assert own_rates(1.0, samples, calls, on_device=True) == by_host == own_rates(
        1.0, on_gpu, calls)
    assert by_host == pytest.approx([calls * rate for rate in own_rates(1.0, samples)])
    item = of_machine(Gemm("bf16", 512, 512, 512), 1e-3)
    (rates,) = [fact for fact in HardwareDeriver().facts(item, {}, lambda: samples)
                if isinstance(fact, RankRates)]
    assert rates.passes == (own_rates(2 * 512 ** 3, samples),)


def test_the_table_shows_which_clock_the_rates_are_by() -> None:
    items = [of_machine(Gemm("bf16", 512, 512, 512), 1e-3),
             of_machine(Gemm("fp8_e5m2", 512, 512, 512, right="fp8_e4m3"), 1e-3)]
    for changed, clocks in ((items, []), ([with_device_time(item, 9e-4) for item in items],
                                          ["device", "device"])):
        derived = HardwareDeriver().derive(changed, {})
        table = next(HardwarePresenter().tables("machine", changed, derived)).without_empty()
        at = {column.name: place for place, column in enumerate(table.columns)}
        assert [row.cells[at["clock"]] for row in table.rows if "clock" in at] == clocks
        assert table.rows[1].cells[at["type"]] == "fp8_e5m2 x fp8_e4m3"


def test_a_stream_is_beside_the_best_and_the_declared_rate() -> None:
    items, records = machine()
    shares = [(values["of_best_stream"], values["of_declared_memory"])
              for values in records.values() if "of_best_stream" in values]
    assert shares == [(pytest.approx(0.5), pytest.approx(0.25)), (1, pytest.approx(0.5))] * 2


def measured(
    records: Records, items: Sequence[CaseResult],
) -> dict[str, dict[str, float]]:
    facts = (fact for item in items for fact in HardwareDeriver().facts(
        item, records[item.case.case_id], lambda: None))
    return machine_rates(fact for fact in facts if isinstance(fact, MachineRate))


def test_pairs_measure_links_and_messages() -> None:
    told = {str(rank): {"node": f"node{rank // 2}"} for rank in range(4)}
    items = [replace(of_machine(Pairs(what, "one way", True, 8, 10), 1e-3, 4), detail=told)
             for what in ("latency", "bandwidth")]
    records = {item.case.case_id: PairsRecord((), (
        Distance("same node", 4, 1, median, 3, 0, 1, 2),
        Distance("other node", 8, 1, far, 3, 0, 2, 3)))
        for item, median, far in zip(items, (1e-5, 2e9), (1e-4, 1e9), strict=True)}
    found = measured({name: {"pairs": one} for name, one in records.items()}, items)
    assert found["links"] == {"cpu gloo 2": 2e9, "cpu gloo 3": 1e9}
    assert found["messages"] == pytest.approx(
        {"cpu gloo 2": 1e5, "cpu gloo 3": 1e4})


def test_a_collective_is_beside_the_measured_link() -> None:
    case = make_case(world_size=2)
    time_s = case.workload.size_bytes / 5e8
    item = ok(case, time_s)
    record = CollectiveDeriver().derive([item], MEASURES)[case.case_id]
    assert record["of_measured_link"] == pytest.approx(0.5)
    assert record["measured_link_bytes_per_s"] == 1e9
    assert record["bound_by"] and record["of_link"] is None
    alone = CollectiveDeriver().derive([item], {})[case.case_id]
    assert alone["of_measured_link"] is None and alone["bound_by"] is None


@pytest.mark.parametrize(("primitive", "order", "elements"), [
    ("tp_columnwise", "AG_before", 64 * 32 + 32 * 24 + 64 * 24),
    ("tp_columnwise", "AG_after", 16 * 32 + 32 * 96 + 16 * 96),
    ("tp_rowwise", "RS_after", 64 * 8 + 8 * 96 + 64 * 96),
    ("tp_mlp", "AR_after", (64 * 32 + 32 * 24 + 64 * 24) + (64 * 24 + 24 * 32 + 64 * 32)),
    ("dp_allreduce", "AR_after", 4 * (96 * 16 + 16 * 32 + 96 * 32)),
    ("ep_all_to_all", "dispatch_combine", 16 * 4 // 4 * 32 + 32 * 96 + 16 * 4 // 4 * 96)])
def test_products_move_operands_and_results_once(
    primitive: str, order: str, elements: int,
) -> None:
    work = make_primitive("torch", primitive, order, (64, 96, 32))
    assert product_bytes(work, 4) == 4 * elements
    assert product_bytes(replace(work, primitive="of_a_plugin"), 4) is None


def test_a_primitive_is_beside_the_measured_product() -> None:
    work = make_primitive()
    case = make_primitive_case(work)
    record = PrimitiveDeriver().derive([ok(case, work.flops / 5e10)], {
        **MEASURES, "peak_flops": {"fp32": 5e11}})[case.case_id]
    assert record["of_measured_product"] == pytest.approx(0.5)
    assert record["of_declared_product"] == pytest.approx(0.1)
    assert record["roofline"].bound_by == record["bound_by"] == COMPUTE


def test_what_a_rank_alone_computes_is_beside_the_product_of_a_rank_alone() -> None:
    """The best product of 1 rank is 2e11, of 2 ranks at once 1e11 (`machine`)."""
    items, records = machine()
    beside = {"measured": measured(records, items)}
    rate = {ranks: next(one.rate for one in ceilings_of(
        ok(make_case(world_size=ranks)), "fp32", beside) if one.limit == COMPUTE)
        for ranks in (1, 2, 4)}
    assert rate == {1: 2e11, 2: 1e11, 4: 1e11}
    case = training_case("single", dp=1, calls=(), case={"world_size": 1})
    alone = trained(case)
    step_s = alone.statistics.median_s if alone.statistics else 0.0
    flops = dict(training_of(case).flops)[shown_definition(training_of(case)) or ""]
    values = TrainingDeriver().derive([alone], beside)[case.case_id]
    assert values["mfu_of_measured"] == pytest.approx(flops / step_s / 2e11)


def test_steps_and_phases_that_meet_once_have_rooflines() -> None:
    items = [trained(training_case("data")), trained(training_case("fsdp", index=1))]
    records = TrainingDeriver().derive(items, MEASURES)
    data, fsdp = (records[item.case.case_id]["rooflines"] for item in items)
    assert [one.part for one in data] == ["step", "forward", "backward", "optimizer"]
    assert [one.part for one in fsdp] == ["step"]
    step, forward, backward, optimizer = data
    assert forward.demand.flops and step.demand.flops == pytest.approx(3 * forward.demand.flops)
    assert backward.demand.flops == pytest.approx(2 * forward.demand.flops)
    assert backward.demand.network_bytes == step.demand.network_bytes
    assert optimizer.demand.memory_bytes == 2 * 474_112 + 474_112 + 2 * 948_224
    assert optimizer.bound_by == MEMORY
    assert TrainingDeriver().derive(items, {})[items[0].case.case_id]["rooflines"] == ()


def tables_in(shown: Iterable[object]) -> list[Table]:
    return [one for one in shown if isinstance(one, Table)]


def test_tables_and_charts_show_ceilings_evidence_and_scores() -> None:
    items, records = machine()
    presenter = HardwarePresenter()
    (table,) = tables_in(presenter.overviews(items, records))
    assert [row.cells[-3:-1] for row in table.rows][:2] == [("compute", pytest.approx(0.5)),
                                                            ("compute", None)]
    assert any("measured, 0.2 TFLOP/s" in line.text for line in table.lead)
    assert "bound by compute" in table.notes[0].text
    charts = [chart for chart in presenter.overviews(items, records)
              if isinstance(chart, Chart) and chart.file_stem.startswith("roofline")]
    assert [chart.file_stem for chart in charts] == [
        "roofline-matrix_products-1", "roofline-matrix_products-2"]
    text = texts_of(figure_of(charts[0], make_results(tuple(items))))
    for words in ("fp32 products 0.2 TFLOP/s", "memory 20 GB/s", "FLOP per byte of memory",
                  "fp32 1 rank", "256: compute, 50\N{NO-BREAK SPACE}%", "TFLOP/s"):
        assert words in text, words


def test_where_nothing_is_known_a_line_states_what_to_add() -> None:
    items = [trained(training_case("data"))]
    records = TrainingDeriver().derive(items, {})
    (*_, table) = tables_in(TrainingPresenter().overviews(items, records))
    assert table.title == "roofline of trainings" and not table.rows
    assert "kind: hardware, test: gemm" in table.lead[0].text


def test_where_only_some_ceilings_are_known_a_line_names_what_lacks() -> None:
    items = [trained(training_case("data")), trained(training_case("data", index=1))]
    records = TrainingDeriver().derive(items, {"peak_flops": {"fp32": 1e11}})
    (*_, table) = tables_in(TrainingPresenter().overviews(items, records))
    assert not table.rows
    assert "  none: unknown without a ceiling of memory (test stream" in table.lead[0].text
    assert not any(isinstance(chart, Chart) and chart.file_stem.startswith("roofline")
                   for chart in TrainingPresenter().overviews(items, records))


def test_peaks_of_products_alone_may_be_declared() -> None:
    sweep: dict[str, Any] = {"benchmarks": [{"kind": "collective", "collective": "all_reduce",
                                             "size": 8}]}
    hardware = {"peak_flops": {"tf32": 1e14, "fp8": 1e15, "int8": 1e15, "float32": 1e13},
                "memory_bandwidth_gb_per_s": 3350}
    config = check_config({**sweep, "hardware": hardware}, "")
    assert set(config.hardware.peak_flops) == {"tf32", "fp8", "int8", "fp32"}
    with pytest.raises(ConfigError, match="fp4"):
        check_config({**sweep, "hardware": {"peak_flops": {"fp4": 1e15}}}, "")

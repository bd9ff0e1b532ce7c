"""The numbers of a primitive, and what people read of them: tables, plans, skips."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.config.axes import UNCHECKED
from hpcbench.kinds.primitive.derive import (
    COMPARED,
    PrimitiveDeriver,
    carried_bytes,
    communication_rates,
    flop_rates,
    work,
)
from hpcbench.plan.case import Case
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import CaseResult, Results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_summary
from hpcbench.statistics.overlap import (
    OverPasses,
    exposed_communication_s,
    mean_interval,
    over_passes,
    overlap_efficiency,
    speedup,
    times_longest_part,
)
from hpcbench.texts import Verbosity
from results_factory import (
    all_ok,
    in_passes,
    make_case,
    make_plan,
    make_primitive,
    make_primitive_case,
    make_results,
    not_ok,
    ok,
    print_all,
    rows_with,
)
from statistics_series import autoregressive

Capture = pytest.CaptureFixture[str]


def case(index: int, implementation: str, *, shape: str = "", **options: Any) -> Case:
    order = options.pop("order", "")
    work = make_primitive(implementation, order=order, shape=shape, **options)
    return make_primitive_case(work, index=index)


def comparison() -> Results:
    """Return all parts and an implementation that hides half of its communication."""
    cases = (case(0, "chunked_pipeline", chunks=2), case(1, "torch"), case(2, "comm_only"),
             case(3, "compute_only"), case(4, "chunked_pipeline", chunks=4))
    medians = ((8e-3, 16e-3), (10e-3, 20e-3), (4e-3, 8e-3), (6e-3, 12e-3), (11e-3, 12e-3))
    return make_results(tuple(
        in_passes(item, *times) for item, times in zip(cases, medians, strict=True)))


def table(text: str, block: str = "primitives") -> list[str]:
    """Return the lines of a block's table."""
    lines = text.split(f"block {block}\n")[1].splitlines()
    return lines[:lines.index("")]


def test_the_table_of_primitives(capsys: Capture, tmp_path: Path) -> None:
    print_all(comparison(), tmp_path)
    lines = table(capsys.readouterr().out)
    assert lines[0].split() == [
        "implementation", "options", "time", "p50", "95", "%", "CI", "per", "rank", "all",
        "ranks", "busbw", "exposed", "overlap", "x", "longest", "x", "torch", "#wrong", "n",
        "status"]
    assert " ".join(lines[1].split()) == (
        "(ms) (ms) (TFLOP/s) (TFLOP/s) (GB/s) (ms) %, range (range)"), "of passes, no interval"
    assert lines[2] == ("tp_columnwise AG_before  gloo (cpu)  4 ranks  fp32  m=4096 n=1024 k=512  "
                        "weight=sharded  isolated, fold global")
    # flops 1.07e9 a rank; 8 MiB gathered by 4 ranks in 8 ms; medians are those of the later pass
    assert [line.removesuffix("       0  20  ok").split() for line in lines[3:8]] == [
        ["compute_only", "size=sharded", "12.00", "11.88..12.24", "0.0895",
         "0.358", "-", "-", "-", "-", "-"],
        ["comm_only", "8.00", "7.92..8.16", "-", "-", "0.786", *["-"] * 4],
        ["chunked_pipeline", "chunks=2", "16.00", "15.84..16.32", "0.0671",
         "0.268", "-", "3.0", "50", "1.33", "1.25"],
        ["torch", "20.00", "19.80..20.40", "0.0537", "0.215", "-", "6.0", "0",
         "1.67", "1.00"],
        ["chunked_pipeline", "chunks=4", "12.00", "11.88..12.24", "0.0895",
         "0.358", "-", *["unclear"] * 4],  # 38 (-25..100) %, 1.29 (0.91..1.67)
    ]
    assert "medians over passes" in lines[8]
    assert " ".join(" ".join(lines[9:]).split()) == (
        "tp_columnwise chunked_pipeline chunks=4: exposed unclear: 0 ns to 5 ms in 2 passes; "
        "medians: t 12 ms, t(compute_only) 12 ms, t(comm_only) 8 ms")


def test_a_single_case_shows_all_of_its_options_and_why_it_is_not_compared(
    capsys: Capture, tmp_path: Path,
) -> None:
    named = case(0, "torch", shape="llama3-8b mlp_up tp=4")
    print_all(make_results((in_passes(named, 1e-3),)), tmp_path)
    lines = table(capsys.readouterr().out)
    assert lines[2].endswith("m=4096 n=1024 k=512 llama3-8b mlp_up tp=4  isolated, fold global")
    assert "weight=sharded" in lines[3]
    assert [line.partition(" of ")[0] for line in lines[4:] if line[2] != " "] == [
        f"  1 row not compared: {name}" for name in ("compute_only", "comm_only")]


def test_orders_stand_together_and_failed_rows_have_no_numbers(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = (case(0, "torch"), case(1, "torch", order="AG_after"), case(2, "compute_only"),
             case(3, "comm_only", order="AG_after"))
    items = (in_passes(cases[0], 2e-3), not_ok(cases[1], "failed", "no memory", blamed_rank=1),
             in_passes(cases[2], 1e-3), in_passes(cases[3], 1e-3))
    print_all(make_results(items), tmp_path)
    text = capsys.readouterr().out
    before, compute, torch, after, comm, failing = (line.split() for line in table(text)[2:8])
    assert [before[1], compute[0], torch[0]] == ["AG_before", "compute_only", "torch"]
    assert [after[1], comm[0], failing[0]] == ["AG_after", "comm_only", "torch"]
    (failed,) = rows_with(text, "failed")
    assert failed == failing and failed[-12:] == ["-"] * 11 + ["failed"]


def test_options_that_an_order_decides_stand_in_its_heading(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = [case(2 * at + add, name, order=order, weight=weight)
             for at, (order, weight) in enumerate((("AG_before", "sharded"),
                                                   ("AG_after", "replicated")))
             for add, name in enumerate(("compute_only", "chunked_pipeline"))]
    print_all(make_results(tuple(in_passes(item, 1e-3) for item in cases)), tmp_path)
    lines = table(capsys.readouterr().out)
    assert "AG_before" in lines[2] and "weight=sharded" in lines[2]
    assert "AG_after" in lines[5] and "weight=replicated" in lines[5]
    assert [lines[at].split()[:2] for at in (3, 4, 6, 7)] == 2 * [
        ["compute_only", "size=sharded"], ["chunked_pipeline", "chunks=4"]]


def test_definitions_are_of_what_is_shown(capsys: Capture, tmp_path: Path) -> None:
    primitive, collective = ok(case(0, "torch")), ok(make_case(index=1))
    for items, words in (((primitive,), (True, False)), ((collective,), (False, True)),
                         ((primitive, collective), (True, True))):
        print_all(make_results(items), tmp_path, explain=True)
        head = capsys.readouterr().out.split("\nblock ", 1)[0]
        assert ("(t_p(compute_only) + t_p(comm_only) - t_p) / the shorter" in head,
                "algbw = size / time p50" in head) == words


def test_primitives_and_collectives_have_tables_of_their_own(
    capsys: Capture, tmp_path: Path,
) -> None:
    print_all(make_results((ok(case(0, "torch")), ok(make_case(index=1)))), tmp_path)
    text = capsys.readouterr().out
    assert table(text)[0].startswith("implementation")
    assert "algbw" in table(text, "quick")[0]
    assert "2 of 2 cases measured" in text


def test_skips_name_their_problems(capsys: Capture, tmp_path: Path) -> None:
    items: tuple[CaseResult, ...] = tuple(
        not_ok(make_primitive_case(make_primitive(name, mnk=(m, 64, 32)), index=index), "skipped",
               "not here")
        for index, (name, m) in enumerate((("torch", 64), ("p2p_ring", 128))))
    print_all(make_results(items), tmp_path)
    text = capsys.readouterr().out
    assert "2 skipped: 2 x not here" in text and "tp_columnwise p2p_ring" in text


def test_a_plan_lists_its_primitives(capsys: Capture) -> None:
    cases = [case(0, "torch"), case(1, "chunked_pipeline", chunks=8), make_case(index=2)]
    print_plan(make_plan(tuple(cases)), Verbosity.VERBOSE)
    lines = capsys.readouterr().out.splitlines()
    first = lines.index("block primitives") + 1
    assert lines[first].split()[:7] == ["#", "primitive", "implementation", "order", "options",
                                        "backend", "device"]
    row = lines[first + 3].split()
    assert row[:13] == [
        "1", "tp_columnwise", "chunked_pipeline", "AG_before", "chunks=8", "weight=sharded", "gloo",
        "cpu", "4", "fp32", "4096", "1024", "512"]
    assert row[-4:] == ["20", "isolated", "500", "ms"]
    assert "block quick" in lines


def test_a_long_plan_has_a_line_for_each_implementation(capsys: Capture) -> None:
    cases = tuple(make_primitive_case(make_primitive("torch", mnk=(64 * (1 + at), 64, 32)),
                                      index=at) for at in range(70))
    print_plan(make_plan(cases))
    lines = capsys.readouterr().out.splitlines()
    block = lines[lines.index("block primitives") + 1:]
    assert len([line for line in block if line.split()[:2] == ["70", "tp_columnwise"]]) == 1
    shared = " ".join(" ".join(block).split())
    assert "implementation torch, orders AG_before" in shared and "64..4480" in shared


def test_the_same_numbers_stand_in_table_and_files(capsys: Capture, tmp_path: Path) -> None:
    results = comparison()
    write_summary(results, tmp_path)
    print_all(results, tmp_path)
    assert capsys.readouterr().out.count("unclear") >= 4
    text = (tmp_path / "summary.csv").read_text()
    assert "1.3333333333333" in text and "1.25" in text
    assert "1.28787878" in text, "what is unclear in the table stays in the files"


def test_no_primitive_no_change(capsys: Capture, tmp_path: Path) -> None:
    print_all(all_ok((make_case(),)), tmp_path)
    assert "overlap" not in capsys.readouterr().out


TIMES = st.lists(st.floats(1e-7, 1e3), min_size=3, max_size=3)
TRIPLES = st.lists(TIMES, min_size=1, max_size=7)


def compared(*items: CaseResult) -> list[Values]:
    """Return the values of each case, none where it has none."""
    found = PrimitiveDeriver().derive(items, {})
    return [found.get(item.case.case_id, {}) for item in items]


def sweep(
    *implementations: tuple[str, tuple[float, ...]], **workload: Any
) -> list[CaseResult]:
    return [in_passes(make_primitive_case(make_primitive(name, **workload), index=index), *times)
            for index, (name, times) in enumerate(implementations)]


def test_flops_of_the_busiest_rank_and_of_all_are_apart() -> None:
    work = make_primitive("torch", mnk=(4096, 1024, 512))
    rates = flop_rates(work, 1e-3)
    assert rates["busiest_rank_flops_per_s"] == 2 * 4096 * 1024 * 512 / 4 / 1e-3
    assert rates["all_ranks_flops_per_s"] == 4 * rates["busiest_rank_flops_per_s"]
    heavy = make_primitive("torch", "ep_all_to_all", split="one_heavy")
    uneven = flop_rates(heavy, 1e-3)
    assert uneven["all_ranks_flops_per_s"] < 4 * uneven["busiest_rank_flops_per_s"]


def test_who_computes_nothing_has_no_flops_and_who_computes_no_bandwidth() -> None:
    work = make_primitive("comm_only", mnk=(4096, 1024, 512))
    assert flop_rates(work, 1e-3) == {}
    rates = communication_rates(work, 1e-3)
    assert rates["algbw_bytes_per_s"] == 4096 * 512 * 4 / 1e-3
    assert rates["busbw_bytes_per_s"] == rates["algbw_bytes_per_s"] * 3 / 4
    assert communication_rates(make_primitive("torch"), 1e-3) == {}
    assert communication_rates(make_primitive("compute_only"), 1e-3) == {}
    assert flop_rates(make_primitive("torch"), 0.0) == communication_rates(work, 0.0) == {}


def test_links_carry_what_the_library_makes_of_each_collective() -> None:
    """gloo's reduce_scatter is a whole all_reduce, of twice as many bytes."""
    work = replace(make_primitive(), calls=("all_gather", "reduce_scatter"), wire_bytes=1000)
    assert [carried_bytes(make_primitive_case(work, backend=backend))
            for backend in ("gloo", "nccl")] == [1500, 1000]


def test_the_bytes_of_several_collectives_are_summed_before_the_rate() -> None:
    work = make_primitive("comm_only", "tp_mlp", mnk=(64, 128, 32))
    rates = communication_rates(work, 1.0)
    assert rates["algbw_bytes_per_s"] == 2 * 64 * 32 * 4


def test_overlap_is_what_intels_benchmarks_call_so() -> None:
    """Products 6 ms, communication 4 ms: in 10 ms nothing, in 6 ms all, in 8 ms half is hidden."""
    for both, share, longest in ((10e-3, 0.0, 10 / 6), (6e-3, 1.0, 1.0), (8e-3, 0.5, 8 / 6)):
        efficiency = overlap_efficiency([both], [6e-3], [4e-3])
        distance = times_longest_part([both], [6e-3], [4e-3])
        exposed = exposed_communication_s([both], [6e-3])
        assert efficiency.median == pytest.approx(share, abs=1e-12)
        assert distance.median == pytest.approx(longest)
        assert exposed.median == pytest.approx(both - 6e-3)


def test_what_is_slower_than_both_parts_is_reported_as_it_is() -> None:
    efficiency = overlap_efficiency([12e-3], [6e-3], [4e-3])
    assert efficiency is not None and efficiency.median == pytest.approx(-0.5)
    quicker = overlap_efficiency([5e-3], [6e-3], [4e-3])
    assert quicker is not None and quicker.median == pytest.approx(1.25)
    exposed = exposed_communication_s([5e-3], [6e-3])
    assert exposed is not None and exposed.median == pytest.approx(-1e-3)


def test_drift_that_hits_all_cases_of_a_pass_cancels() -> None:
    slow = [1.0, 3.0, 0.5]
    efficiency = overlap_efficiency(*[[time * factor for factor in slow] for time in (8, 6, 4)])
    assert efficiency is not None and efficiency.passes == 3
    assert efficiency.least == efficiency.median == efficiency.greatest == pytest.approx(0.5)


def test_only_passes_that_all_have_count() -> None:
    assert over_passes(lambda a, b: a / b, [1.0, None, 9.0], [1.0, 2.0, None]) == OverPasses(
        1.0, 1.0, 1.0, 1)
    assert speedup([None, 1.0], [1.0, None]) is None
    assert speedup([], [1.0]) is None
    assert speedup([0.0], [1.0]) is None  # a time of 0 has no ratio


@given(TRIPLES)
def test_the_median_lies_in_its_range_and_perfect_overlap_is_the_bound(
    triples: list[list[float]]
) -> None:
    both, compute, communicate = zip(*triples, strict=True)
    efficiency = overlap_efficiency(both, compute, communicate)
    longest = times_longest_part(both, compute, communicate)
    assert efficiency is not None and longest is not None
    assert efficiency.passes == len(triples)
    for found in (efficiency, longest):
        assert found.least <= found.median <= found.greatest
    for row in triples:
        one, bound = (formula(*([time] for time in row))
                      for formula in (overlap_efficiency, times_longest_part))
        assert one is not None and bound is not None
        if abs(bound.median - 1) > 1e-6:
            assert (one.median > 1) == (bound.median < 1)


def test_a_fused_case_is_compared_with_its_parts_and_with_torch() -> None:
    items = sweep(("compute_only", (6e-3, 12e-3)), ("comm_only", (4e-3, 8e-3)),
                  ("torch", (10e-3, 20e-3)), ("chunked_pipeline", (8e-3, 16e-3)))
    compute, communicate, torch, fused = compared(*items)
    assert fused["overlap_efficiency_passes"] == OverPasses(*[pytest.approx(0.5)] * 3, 2)
    assert fused["exposed_s_passes"].greatest == pytest.approx(4e-3)
    assert fused["exposed_share_passes"] == OverPasses(*[pytest.approx(0.25)] * 3, 2)
    done = work(items[-1], fused)
    assert done is not None and done.communication == fused["exposed_share_passes"]
    assert fused["speedup_over_torch_passes"].median == pytest.approx(1.25)
    assert [fused[name] for name in ("compute_only_s", "comm_only_s", "not_compared")] == [
        12e-3, 8e-3, ()]
    assert torch["speedup_over_torch_passes"] == OverPasses(1.0, 1.0, 1.0, 2)
    assert torch["overlap_efficiency_passes"].median == pytest.approx(0, abs=1e-12)
    of_both = {"overlap_efficiency", "not_compared"}
    assert not of_both & compute.keys() and not of_both & communicate.keys()
    assert "busbw_bytes_per_s" in communicate and "busbw_bytes_per_s" not in compute
    assert "busiest_rank_flops_per_s" in compute
    assert "busiest_rank_flops_per_s" not in communicate


@pytest.mark.parametrize("other", [
    {"order": "AG_after"}, {"mnk": (4096, 1024, 1024)}, {"dtype": "fp64"},
    {"weight": "replicated"}])
def test_parts_of_another_problem_are_no_parts(other: dict[str, Any]) -> None:
    parts = sweep(("compute_only", (6e-3,)), ("comm_only", (4e-3,)), ("torch", (9e-3,)), **other)
    fused = in_passes(make_primitive_case(make_primitive("p2p_ring"), index=9), 8e-3)
    comparison = compared(*parts, fused)[-1]
    assert all(comparison[f"{one.name}_passes"] is None for one in COMPARED)
    assert comparison["not_compared"] == tuple(
        f"{name} of the same problem was not run: it has another order or size, or is not in the "
        "sweep"
        for name in ("compute_only", "comm_only", "torch"))


@pytest.mark.parametrize("change", [
    {"backend": "mpi"}, {"world_size": 2}, {"env": (("GLOO_X", "1"),)}, {"mode": "barrier_start"},
    {"device": "cuda"}])
def test_parts_that_ran_in_another_way_are_no_parts(change: dict[str, Any]) -> None:
    part = in_passes(make_primitive_case(make_primitive("compute_only"), index=1, **change), 6e-3)
    fused = in_passes(make_primitive_case(make_primitive("p2p_ring")), 8e-3)
    assert compared(part, fused)[1]["exposed_s_passes"] is None


def test_the_unsharded_product_is_no_part() -> None:
    unsharded = make_primitive_case(make_primitive("compute_only", size="unsharded"), index=1)
    fused = in_passes(make_primitive_case(make_primitive("p2p_ring")), 8e-3)
    rates = compared(in_passes(unsharded, 9e-3), fused)
    assert rates[1]["exposed_s_passes"] is None
    assert rates[0]["busiest_rank_flops_per_s"] == 2 * 4096 * 1024 * 512 / 9e-3


def test_equal_extents_of_models_with_other_names_are_the_same_problem() -> None:
    part = in_passes(make_primitive_case(make_primitive("compute_only"), index=1), 6e-3)
    named = make_primitive("p2p_ring", shape="llama3-8b mlp_up tp=4")
    fused = in_passes(make_primitive_case(named), 8e-3)
    assert compared(part, fused)[1]["exposed_s_passes"] is not None


def test_of_several_parts_the_one_that_was_measured_alike_is_taken() -> None:
    work = make_primitive("compute_only")
    others = [in_passes(make_primitive_case(work, index=index, **change), 6e-3 + index * 1e-3)
              for index, change in enumerate((
                  {"iterations": 7}, {"block": "elsewhere"}, {"check": UNCHECKED}, {}))]
    fused = in_passes(make_primitive_case(make_primitive("p2p_ring"), index=9), 20e-3)
    exposed = compared(*others, fused)[-1]["exposed_s_passes"]
    assert exposed is not None and exposed.median == pytest.approx(11e-3)


def test_why_there_is_no_comparison_is_stated() -> None:
    failed = not_ok(make_primitive_case(make_primitive("compute_only"), index=1), "failed", "x")
    local = in_passes(make_primitive_case(make_primitive("comm_only"), index=2), 4e-3,
                      fold="local_max")
    other_pass = in_passes(make_primitive_case(make_primitive("torch"), index=3), None, 9e-3)
    fused = in_passes(make_primitive_case(make_primitive("p2p_ring"), index=4), 8e-3, None)
    assert compared(failed, local, other_pass, fused)[-1]["not_compared"] == (
        "compute_only of the same problem is failed",
        "the time of comm_only has fold local_max, not global",
        "there is no pass in which torch was run, too")


def test_parts_that_no_pass_has_both_of_are_named() -> None:
    items = sweep(("compute_only", (6e-3, None)), ("comm_only", (None, 4e-3)),
                  ("torch", (9e-3, 9e-3)), ("p2p_ring", (8e-3, 8e-3)))
    comparison = compared(*items)[-1]
    exposed, share, overlap, longest, speedup = (
        comparison[f"{one.name}_passes"] for one in COMPARED)
    assert overlap is longest is None and exposed and share and speedup
    assert comparison["not_compared"] == (
        "there is no pass in which compute_only and comm_only were both run, too",)


def test_results_without_medians_of_passes_have_rates_only() -> None:
    items = sweep(("compute_only", (6e-3,)), ("comm_only", (4e-3,)), ("torch", (9e-3,)))
    old = [replace(item, timing=item.timing and replace(item.timing, pass_medians_s=()))
           for item in items]
    comparison = compared(*old)[-1]
    assert "busiest_rank_flops_per_s" in comparison
    assert comparison["overlap_efficiency_passes"] is None
    assert "there is no pass in which compute_only was run, too" in comparison["not_compared"]


@pytest.mark.parametrize("passes", [2, 3, 6])
@pytest.mark.parametrize(("both_s", "opposite"), [(10.0, 0.0), (6.0, 1.0)])
def test_an_interval_excludes_the_true_overlap_in_at_most_one_of_twenty_runs(
        both_s: float, opposite: float, passes: int) -> None:
    """Products 6, communication 4; 30 samples of AR(0.8) noise a pass, 2,000 runs."""
    both, compute, communicate = (
        time_s * np.median(autoregressive(np.random.default_rng([seed, passes]), 2000 * passes, 30),
                           axis=1).reshape(2000, passes)
        for seed, time_s in enumerate((both_s, 6.0, 4.0)))
    shares = (compute + communicate - both) / np.minimum(compute, communicate)
    excluded = [not mean_interval(row).holds(opposite) for row in shares]
    assert np.mean(excluded) < 0.06, "5 %, and twice the error of 2,000 runs"


def test_what_cannot_be_decided() -> None:
    """What one run printed: -252 to 106 %. Six passes close together tell; one never does."""
    wide = overlap_efficiency([9.5, 10, 16], [6, 6.2, 5.8], [4, 4.1, 3.9])
    assert wide is not None and not wide.tells
    close = overlap_efficiency([8.0, 8.1] * 3, [6.0] * 6, [4.0] * 6)
    assert close is not None and close.tells
    assert not any(found.tells for found in (
        overlap_efficiency([8], [6], [4]), speedup([1.0], [2.0]),
        exposed_communication_s([8], [6])) if found)


@pytest.mark.parametrize(("times_s", "tells"), [
    ((1.0, 1.0, 1.0), True), ((1.0, 1.001, 0.999), True),  # as fast as the base, within 5 %
    ((0.9, 0.91, 0.905), True), ((0.9, 1.1, 1.0), False), ((1.0, 1.04, 1.02), False)])
def test_a_speedup_is_distinct_from_1_or_from_5_per_cent(
        times_s: tuple[float, ...], tells: bool) -> None:
    found = speedup(times_s, [1.0] * 3)
    assert found is not None and found.tells == tells

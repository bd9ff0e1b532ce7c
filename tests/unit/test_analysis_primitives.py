"""The numbers of a primitive: rates, and how much of its communication is hidden, pass by pass."""

from __future__ import annotations

from dataclasses import replace
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
)
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import CaseResult
from hpcbench.statistics.overlap import (
    OverPasses,
    exposed_communication_s,
    mean_interval,
    over_passes,
    overlap_efficiency,
    speedup,
    times_longest_part,
)
from results_factory import in_passes, make_primitive, make_primitive_case, not_ok
from statistics_series import autoregressive

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
    assert all(comparison[f"{name}_passes"] is None for name in COMPARED)
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
    exposed, overlap, longest, speedup = (comparison[f"{name}_passes"] for name in COMPARED)
    assert overlap is longest is None and exposed and speedup
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

"""How far times can be trusted, one number a case, and what people read of trainings."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.answers.compare import compare
from hpcbench.answers.compare_inputs import Side, cases_of
from hpcbench.answers.compare_tables import comparison_table
from hpcbench.answers.recommend import recommend, recommend_charts, recommend_tables
from hpcbench.config.axes import UNCHECKED
from hpcbench.kinds.training.plan.models import flops, shape_of
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import QUALITIES, CaseResult, CaseSamples, Clocks, Results
from hpcbench.reduce.spread import (
    clock_bound_s,
    interval_share,
    late_share,
    launch_spread,
    launch_spreads,
    ramp_share,
    range_of,
    sample_counts,
    start_ups,
)
from hpcbench.reduce.stack import sample_map
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.results_lines import brief_tables_of, tables_of
from hpcbench.report.summary import write_summary
from hpcbench.texts import Verbosity
from hpcbench.trace.schema import Flag
from hpcbench.views.columns import interval_cell
from hpcbench.views.table import (
    FLAGS,
    Column,
    Group,
    Range,
    Row,
    Show,
    Table,
    WithInterval,
    cell_text,
    flag_cell,
)
from launcher import ROOT
from results_factory import (
    MemorySamples,
    as_version_1,
    flagged,
    in_passes,
    make_canary,
    make_case,
    make_plan,
    make_primitive,
    make_primitive_case,
    make_results,
    make_statistics,
    not_ok,
    ok,
    print_all,
    rows_with,
    sweep,
)
from training_results import MEMORY, strategies, trained, training_case, with_clear, with_peak

Capture = pytest.CaptureFixture[str]


def test_an_interval_that_is_absent_or_unreliable_has_no_figure(
    capsys: Capture, tmp_path: Path,
) -> None:
    few = ok(make_case(iterations=5, index=1))
    depending = ok(make_case(index=2), statistics=replace(make_statistics(1e-3), ci_reliable=False))
    print_all(make_results((few, flagged(depending, "ci_unreliable"))), tmp_path)
    text = capsys.readouterr().out
    assert [row[9] for row in rows_with(text, "ok")] == ["-", "?"]
    assert QUALITIES["ci_unreliable"] in " ".join(text.split())


def test_the_interval_is_printed_from_its_lower_to_its_upper_end() -> None:
    stats = replace(make_statistics(1e-3), ci_low_s=0.97e-3, ci_high_s=1.01e-3)
    assert cell_text(interval_cell(stats), Show.US) == "970..1010"
    assert cell_text(interval_cell(replace(stats, median_s=0.0)), Show.US) == "?"
    assert cell_text(interval_cell(None), Show.US) == "-"


def test_results_of_schema_version_1_are_printed(capsys: Capture, tmp_path: Path) -> None:
    print_all(make_results((as_version_1(ok(make_case(), 1e-3)),)), tmp_path)
    text = capsys.readouterr().out
    assert rows_with(text, "ok")[0][7:10] == ["1.00", "-", "1.20"]
    assert "barrier_start, fold local_max" in text
    assert "times of different ranks are not compared" in text
    assert "start-up" not in text
    assert "steady state" not in text


def test_flags_stand_in_their_row_with_figures_and_a_legend(
    capsys: Capture, tmp_path: Path,
) -> None:
    clean, noisy = ok(make_case(), 1e-3), ok(make_case(index=1), 1e-3)
    noisy = flagged(noisy, "late_starts", "fragile", "trend", n_late=5, n_ramp=7,
                    unflagged_median_s=0.9e-3)
    print_all(make_results((clean, noisy)), tmp_path, Verbosity.VERBOSE, explain=True)
    text = capsys.readouterr().out
    assert text.count("late: 25%, fragile: 900 us unflagged, trend\n") == 1
    cell = cell_text(flag_cell(noisy, Show.MS), Show.TEXT)
    assert cell.endswith("fragile: 0.900 ms unflagged, trend")
    for word in ("late_starts", "fragile", "trend"):
        assert f"flag {FLAGS[word]}" in text and QUALITIES[word] in text
        assert f"\nflag {FLAGS[word]}: {QUALITIES[word]}" in text
    assert QUALITIES["unsteady"] not in text
    assert ("samples: 40 counted (5 late, 2 above median + 10 MAD); kept but not counted:\n"
            "  10 warm-ups, 7 before the steady state, 0 left out ") in text


def test_a_case_of_which_all_samples_are_flagged_has_no_other_median(
    capsys: Capture, tmp_path: Path,
) -> None:
    late = flagged(ok(make_case()), "late_starts", "fragile", n_late=20, unflagged_n=0,
                   unflagged_median_s=None)
    print_all(make_results((late,)), tmp_path)
    assert "late: 100%, fragile\n" in capsys.readouterr().out


def test_every_quality_has_a_short_form_or_the_question_mark() -> None:
    assert {*FLAGS, "ci_unreliable"} == set(QUALITIES)
    page = (ROOT / "docs" / "method.md").read_text("utf-8")
    assert [word for word in QUALITIES if f"`{word}`" not in page] == []


def test_start_up_and_ends_of_passes_are_shown_by_backend_and_ranks(
    capsys: Capture, tmp_path: Path,
) -> None:
    cases = sweep(("all_reduce",), ("gloo", "mpi"), (8, 64))
    items = [ok(case, 1e-3) for case in cases]
    items[0] = flagged(items[0], communicator_s=0.5, first_call_s=None,
                       stop_reasons=("converged", "budget", "converged"))
    items[3] = flagged(items[3], communicator_s=None, first_call_s=None)
    items[2] = flagged(items[2], communicator_s=None, first_call_s=None)
    print_all(make_results(tuple(items)), tmp_path, Verbosity.VERBOSE)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["gloo", "4", "500", "ms", "12", "ms", "1", "fixed,", "2", "converged,", "1",
            "budget"] in lines
    assert ["mpi", "4", "-", "-", "2", "fixed"] in lines


def test_launches_have_a_column_and_a_line(capsys: Capture, tmp_path: Path) -> None:
    once, twice = ok(make_case(), 1e-3), ok(make_case(index=1), 1e-3)
    print_all(make_results((once,)), tmp_path)
    assert "launches differ" not in capsys.readouterr().out
    twice = flagged(twice, launch_medians_s=(1.1e-3, 1e-3))
    results = make_results((once, twice))
    print_all(replace(results, plan=replace(results.plan, launches=2)), tmp_path)
    text = capsys.readouterr().out
    assert "\n2 launches x 1 pass, after" in text
    assert text.count("1.00..1.10") == 1
    assert "differ by 10 % (gloo) in the median case" in text


def test_the_canary_shows_the_drift_or_that_nothing_does(capsys: Capture, tmp_path: Path) -> None:
    results = make_results((ok(make_case()),))
    old = make_canary(1e-4, 1.02e-4, 1.1e-4, quality=("drifting",))
    print_all(replace(results, canary=replace(old, tau=0.97)), tmp_path, Verbosity.VERBOSE)
    assert ("canary (between cases, all_reduce gloo 65536B): 3 runs in 20 s; medians 100..110 us; "
            "drift +10.0% (tau +0.97); drifting: ") in " ".join(capsys.readouterr().out.split())
    print_all(replace(results, canary=replace(make_canary(1e-4), n_not_ok=2)), tmp_path,
                  Verbosity.VERBOSE)
    assert "1 run, 2 more not ok\n" in capsys.readouterr().out
    few = replace(make_canary(1e-4, 2e-4), drift=None)
    print_all(replace(results, canary=few), tmp_path, Verbosity.VERBOSE)
    assert "drift: fewer than 8 runs cannot" in " ".join(capsys.readouterr().out.split())
    for asked, word in ((True, "none ran"), (False, "switched off")):
        plan = replace(results.plan, config={"measure": {"canary": asked}})
        print_all(replace(results, plan=plan), tmp_path, Verbosity.VERBOSE)
        assert f"between cases): {word}, so whether" in capsys.readouterr().out


def test_clock_and_order_are_shown(capsys: Capture, tmp_path: Path) -> None:
    results = make_results((flagged(ok(make_case()), clock_bound_s=1.5e-6),))
    results = replace(results, plan=replace(
        results.plan, config={"measure": {"order": "shuffled", "seed": 42}}))
    print_all(replace(results, clocks=Clocks(1, 0, None, None, None)), tmp_path)
    assert "clock: one for all ranks; order of cases: shuffled, seed 42" in capsys.readouterr().out
    print_all(replace(results, clocks=Clocks(2, 5, 1e-6, 4e-7, 12.0)), tmp_path, explain=True)
    text = capsys.readouterr().out
    assert "clocks: 2, 5 synchronisations over MPI, ranks' times at most 1.5 us apart;" in text
    assert "clocks were synchronised (largest error in checks 400 ns, drift 12 ppm)" in text


TIMES = {"2.8 ms": 2.76e-3, "3.1 us": 3.14e-6}


def times_in(tables: Iterable[Table]) -> set[str]:
    """Return the texts of all cells with the units of their columns, as a reader sees them."""
    shown = [table.without_empty() for table in tables]
    return {f"{text} {column.unit}".strip() for table in shown for row in table.rows
            for text, column in zip(table.texts(row), table.columns, strict=True)}


def timed(index: int, time_s: float, primitive: bool) -> CaseResult:
    """Return a case of three passes whose interval leaves two digits."""
    backend = ("gloo", "mpi")[index]
    case = (make_primitive_case(make_primitive(("torch", "functional")[index]), index=index)
            if primitive else make_case(index=index, backend=backend))
    item = in_passes(case, *[time_s] * 3)
    assert item.statistics is not None
    return replace(item, statistics=replace(
        item.statistics, ci_low_s=0.6 * time_s, ci_high_s=1.4 * time_s))


def results_of(*, primitive: bool) -> Results:
    found = make_results(tuple(timed(at, time_s, primitive)
                               for at, time_s in enumerate(TIMES.values())))
    return replace(found, plan=replace(found.plan, passes=3))


@pytest.mark.parametrize("primitive", [False, True], ids=["collective", "primitive"])
def test_a_time_is_the_same_text_everywhere(primitive: bool) -> None:
    results = results_of(primitive=primitive)
    run, side = Run("run", results, MemorySamples(results)), cases_of(Side("a", (results,)))
    ranked = recommend([run], TopicOptions())
    compared = [[comparison_table(compare(side, side, ("a", "b"), in_launch=in_launch),
                                  full=True)]
                for in_launch in (False, True)]
    for tables in (brief_tables_of(results), tables_of(results), recommend_tables(ranked),
                   *compared):
        assert set(TIMES) <= times_in(tables)


def test_a_column_has_the_unit_that_all_of_its_times_have() -> None:
    cells = (Range(9e-4, 1.2e-3), WithInterval(2.76e-3, 1.7e-3, 3.9e-3), 5e-3, "failed", None)
    table = Table("t", (Column("time", "time", Show.US, "p50, us"),),
                  (Group("", tuple(Row((cell,)) for cell in cells)),))
    (column,) = table.without_empty().columns
    assert (column.show, column.unit) == (Show.MS, "p50, ms")
    mixed = replace(table, groups=(*table.groups, Group("", (Row((4e-5,)),)))).without_empty()
    assert mixed.columns[0].unit == "p50" and mixed.without_empty() == mixed
    assert [mixed.texts(row)[0] for row in mixed.rows] == [
        "0.90..1.20 ms", "2.8 ms", "5 ms", "failed", "-", "40 us"]


def test_no_ratio_is_below_one_where_the_lowest_median_is_behind_by_pairs() -> None:
    first = in_passes(make_case(backend="gloo"), 1.0, 2.0, 9.0)
    second = in_passes(make_case(index=1, backend="mpi"), 2.1, 2.2, 2.3)
    results = make_results((first, second))
    ranked = recommend([Run("run", results, MemorySamples(results))], TopicOptions())
    (rival,) = ranked.rankings[0].rivals
    assert ranked.rankings[0].time_s > rival.time_s
    assert rival.paired.ratio == pytest.approx((9 / 2.1 / 2.2 / 2.3 * 2) ** (1 / 3))
    (table,), (chart,) = recommend_tables(ranked), recommend_charts(ranked)
    assert next(one for one in table.columns if one.name == "ratio").unit == "by pairs"
    assert [row.cells[2] for row in table.rows] == [1, rival.paired.ratio]
    assert "fastest" not in chart.x.title and "by pairs" in chart.x.title
    assert chart.reference == 1


def test_an_interval_reaches_to_its_farther_side() -> None:
    stats = ok(make_case(), 2.0).statistics
    assert stats is not None
    near = replace(stats, ci_low_s=1.9, ci_high_s=2.4, ci_reliable=True)
    assert interval_share(near) == pytest.approx(0.2)
    for unsound in ({"ci_low_s": None}, {"ci_reliable": False}, {"median_s": 0.0}):
        assert interval_share(replace(near, **unsound)) is None


def test_a_range_takes_two_times() -> None:
    assert range_of([3.0, None, 1.0, 2.0]) == (1.0, 3.0)
    assert range_of([3.0, None]) is range_of([]) is None


def test_samples_and_launches_are_summed_over_cases() -> None:
    first = flagged(ok(make_case(index=0)), n_late=2, n_warmup=5, launch_medians_s=(1.0, 1.5))
    second = flagged(ok(make_case(index=1)), n_late=1, n_ramp=3, launch_medians_s=(1.0, 1.1))
    alone = flagged(ok(make_case(index=2)), launch_medians_s=(1.0,))
    items = [first, second, alone, not_ok(make_case(index=3), "failed", "died")]
    counts = sample_counts(items)
    assert (counts["counted"], counts["late"], counts["ramp"]) == (3 * first.statistics.n, 3, 3)
    assert late_share(first) == 2 / first.statistics.n
    assert ramp_share(second) == 0 and ramp_share(flagged(
        second, n_ramp=3, all_count=True)) == 3 / first.statistics.n
    spread = launch_spreads(items)
    assert (spread.middle, spread.widest) == pytest.approx((0.3, 0.5))
    assert spread.widest_case is first
    assert alone.timing is not None and launch_spread(alone.timing) is None
    assert launch_spreads([alone]) is None


def test_start_up_is_the_longest_of_a_backend_and_its_ranks() -> None:
    items = [flagged(ok(make_case(index=index, backend=backend)), communicator_s=time_s,
                     first_call_s=None, clock_bound_s=time_s, stop_reasons=("budget",))
             for index, (backend, time_s) in enumerate([("gloo", 0.1), ("mpi", None),
                                                        ("gloo", 0.3)])]
    gloo, mpi = start_ups(items)
    assert (gloo.backend, gloo.communicator_s, gloo.first_call_s) == ("gloo", 0.3, None)
    assert (mpi.communicator_s, dict(gloo.stop_reasons)) == (None, {"budget": 2})
    assert clock_bound_s(items) == 0.3
    assert clock_bound_s(items[1:2]) is None


def test_a_map_has_the_longest_sample_of_each_column() -> None:
    end = np.array([[9, 1, 2, 3, 4], [1, 5, 1, 1, 1]]) * 10**9
    flags = np.array([[Flag.WARMUP, 0, 0, 0, 0]] * 2, dtype=np.int64)
    column = np.array([0, 0, 0, 1, 1])
    samples = CaseSamples(
        ranks=(0, 3), launch=np.zeros(5, np.int64), pass_index=column, start_ns=end * 0,
        end_ns=end, enqueue_ns=end, device_ns=end, flags=flags)
    found = sample_map(samples, 3)
    assert (found.step, found.n_samples, found.ranks) == (2, 5, (0, 3))
    assert found.time_s.tolist() == [[9, 3, 4], [5, 1, 1]]
    assert (found.least_s, found.greatest_s) == (1, 5)
    assert (found.below, found.above, found.has_single) == (False, True, False)
    assert (found.untimed, found.pass_ends) == (((0, 1),), (2,))


def printed(results: Results, folder: Path, capsys: Capture) -> list[str]:
    print_results(results, folder, explain=True)
    return capsys.readouterr().out.splitlines()


def cells(lines: list[str], strategy: str) -> list[str]:
    """Return the cells of a strategy's first row."""
    table = lines[lines.index("block trainings"):]
    return next(line.split() for line in table if line.startswith(f"{strategy} "))


def test_the_table_of_trainings(tmp_path: Path, capsys: Capture) -> None:
    lines = printed(with_peak(strategies(), fp32=50e9), tmp_path, capsys)
    head = lines.index("block trainings") + 1
    assert lines[head].split() == [
        "strategy", "options", "degrees", "batch", "step", "p50", "95", "%", "CI",
        "samples/s", "tokens/s", "MFU", "HFU", "HFU", "nominal", "data", "wait", "forward",
        "backward", "fwd+bwd", "optimizer", "other", "process", "growth", "planned", "parity",
        "n", "status"]
    assert lines[head + 2] == ("transformer-tiny (2 layers, hidden 64, sequence 32)  gloo (cpu)  "
                               "1 rank  fp32  adamw  barrier_start, fold local_max")
    # 2 x 4 samples of 32 tokens in 8 ms; a quarter of the steps is 2 ms
    assert cells(lines, "data") == [
        "data", "bucket_mb=1", "comm_hook=none", "dp=2", "4", "8.00", "7.92..8.16", "1000",
        "32000", "22.81", "-", "-", "2", "28", "55", "-", "10", "5", "9.00", "1.81", "ok", "(12",
        "%", "of", "tolerance)", "20", "ok"]
    assert cells(lines, "pipeline")[6:15] == [
        "13200", "9.40", "-", "-", "1", "-", "-", "80", "8"]


def test_mfu_is_the_model_s_flops_over_what_all_ranks_can_do(
    tmp_path: Path, capsys: Capture,
) -> None:
    case = training_case("data", checkpointing="full")
    results = with_peak(make_results((trained(case, 8e-3),)), fp32=50e9)
    row = cells(printed(results, tmp_path, capsys), "data")
    counted = dict(flops(shape_of(training_of(case)), 8))["megatron"]
    assert float(row[7]) == pytest.approx(100 * counted / (8e-3 * 2 * 50e9), rel=1e-3)
    assert 4 / 3 > float(row[9]) / float(row[7]) > float(row[8]) / float(row[7]) > 1.15


def test_both_ways_to_count_hfu_are_explained_and_differ_by_last_products(
    tmp_path: Path, capsys: Capture,
) -> None:
    case = training_case("data", checkpointing="full")
    results = with_peak(make_results((trained(case, 8e-3),)), fp32=50e9)
    record, shape = results.derived["training"][case.case_id], shape_of(training_of(case))
    last = 8 * 2 * shape.seq_length * shape.layers * shape.hidden * shape.inner
    assert record["hfu_nominal"] - record["hfu"] == pytest.approx(last / (8e-3 * 2 * 50e9))
    text = " ".join(" ".join(printed(results, tmp_path, capsys)).split())
    assert "HFU nominal = with a whole forward pass of each block" in text
    plain = with_peak(make_results((trained(training_case()),)), fp32=50e9)
    assert "HFU" not in "\n".join(printed(plain, tmp_path, capsys))


def priced(results: Results, **hardware: Any) -> Results:
    return with_records(replace(results, plan=replace(
        results.plan, config={"hardware": hardware})))


def test_a_declared_price_gives_what_training_costs(tmp_path: Path, capsys: Capture) -> None:
    """2 ranks for 8 ms at 1.8 an hour each; 8 samples of 32 tokens a step."""
    case = training_case()
    results = priced(make_results((trained(case, 8e-3),)), price_per_device_hour=1.8)
    record = results.derived["training"][case.case_id]
    assert record["cost_per_step"] == pytest.approx(8e-6)
    assert record["cost_per_million_tokens"] == pytest.approx(8e-6 / 256 * 1e6)
    assert record["cost_per_million_samples"] == pytest.approx(1.0)
    text = "\n".join(printed(results, tmp_path, capsys))
    assert "0.00000800" in text and "0.0312" in text
    assert "cost = time x ranks x hardware.price_per_device_hour" in text
    write_summary(results, tmp_path)
    (row,) = read(tmp_path)[0]["results"]["training"]["data"]
    assert row["cost_per_million_samples"] == pytest.approx(1.0)


@pytest.mark.parametrize("hardware", [
    {}, {"price_per_device_hour": None}, {"price_per_device_hour": 2, "device_type": "cuda"}])
def test_without_a_price_of_the_device_there_is_no_cost(
    hardware: dict[str, Any], tmp_path: Path, capsys: Capture,
) -> None:
    results = priced(make_results((trained(training_case()),)), **hardware)
    assert "cost" not in "\n".join(printed(results, tmp_path, capsys))
    write_summary(results, tmp_path)
    assert read(tmp_path)[0]["cases"][0]["cost_per_step"] is None


def test_frozen_weights_have_no_gradients_in_mfu_and_are_run_again_in_hfu(
    tmp_path: Path, capsys: Capture,
) -> None:
    options = (("alpha", 32), ("over", "data"), ("rank", 4), ("targets", "all"))
    case = training_case("lora", options=options, adapters=9_216, checkpointing="full")
    lines = printed(with_peak(make_results((trained(case, 8e-3),)), fp32=50e9), tmp_path, capsys)
    row, whole = cells(lines, "lora"), dict(flops(shape_of(training_of(case)), 8))["megatron"]
    mfu, hfu = (float(cell) for cell in row[8:10])
    assert 0.6 < mfu / (100 * whole / (8e-3 * 2 * 50e9)) < 0.8
    assert 1.3 < hfu / mfu < 1.5  # a forward pass beside two
    assert any("4 for each frozen weight and token, not 6" in line for line in lines)


def test_without_a_peak_there_is_no_mfu_but_a_reason(tmp_path: Path, capsys: Capture) -> None:
    lines = printed(strategies(), tmp_path, capsys)
    assert not any("MFU" in line for line in lines if line.startswith("strategy"))
    assert any("hardware.peak_flops has no fp32" in line for line in lines)


def test_definitions_state_whose_flops_and_which_memory(tmp_path: Path, capsys: Capture) -> None:
    text = "\n".join(printed(strategies(), tmp_path, capsys))
    assert "FLOPs as megatron counts them: products with weights only" in text
    assert "growth = the most that the process of any rank grew" in text
    collectives = printed(make_results((ok(make_case()),)), tmp_path, capsys)
    assert not any("MFU" in line or "parity" in line for line in collectives)


def test_the_slow_rank_is_named_by_what_reveals_it(tmp_path: Path, capsys: Capture) -> None:
    item = trained(training_case(), slow_rank=1)
    results = with_clear(make_results((item,)), item.case, "forward", "backward")
    lines = printed(results, tmp_path, capsys)
    assert ("  data: forward is longest on rank 1 in 97% of the steps; the longest is 1.50x "
            "the shortest") in lines
    assert ("data: backward is shortest on rank 1 in 97% of the steps: the others wait for it; "
            "the longest is 2.00x the shortest") in " ".join(" ".join(lines).split())
    even = printed(make_results((trained(training_case()),)), tmp_path, capsys)
    assert not any("longest on rank" in line for line in even)


def test_what_has_no_numbers_has_none(tmp_path: Path, capsys: Capture) -> None:
    cases = [training_case("fsdp", index=at) for at in range(3)]
    wrong = not_ok(cases[0], "wrong", "gradients differ", blamed_rank=1, n_wrong=3)
    unchecked = replace(trained(cases[2], shares={}, memory=None), n_wrong=None,
                        case=replace(cases[2], check=UNCHECKED))
    lines = printed(make_results((wrong, not_ok(cases[1], "failed", "no memory"), unchecked)),
                    tmp_path, capsys)
    rows = [line.split() for line in lines if line.startswith("fsdp")]
    assert rows[0][-4:] == ["3", "wrong", "-", "wrong"]
    assert rows[1][3:] == ["-"] * 4 + ["1.81", "-", "-", "failed"]
    assert rows[2][-3:] == ["unchecked", "20", "ok"]


def read(folder: Path) -> tuple[dict[str, Any], list[dict[str, str]]]:
    with (folder / "summary.csv").open(encoding="utf-8", newline="") as stream:
        return json.loads((folder / "summary.json").read_text()), [*csv.DictReader(stream)]


def test_the_summary_has_what_users_of_other_tools_expect(tmp_path: Path) -> None:
    write_summary(with_peak(strategies(), fp32=50e9), tmp_path)
    document, rows = read(tmp_path)
    found = document["results"]
    assert [*found["training"]] == ["single", "data", "fsdp", "tensor", "pipeline", "hybrid"]
    data = found["training"]["data"][0]
    assert (data["samples_per_second"], data["tokens_per_second"]) == (1000.0, 32000.0)
    assert data["step_time_ms"] == 8.0 and data["options"] == ["bucket_mb=1", "comm_hook=none"]
    assert set(data["mfu_by_definition"]) == {"6n", "palm", "torchtitan", "megatron", "counted"}
    assert data["mfu"] == data["mfu_by_definition"]["megatron"] == data["hfu"]
    assert data["memory"]["0"]["peak_of"] == "process growth"
    assert data["steps"]["phases"][1]["name"] == "forward"
    assert found["memory"][0]["optimizer_state_bytes"] == 948_224
    assert found["memory"][0]["activations_bytes"] is None
    assert found["not_measured"] == {}
    assert float(rows[1]["forward_s"]) == pytest.approx(0.00224) and rows[1]["primitive"] == ""
    assert rows[1]["global_batch"] == "8" and rows[1]["peak_bytes"] == "9437184"


def test_throughput_times_step_time_is_the_global_batch(tmp_path: Path) -> None:
    """Also where ranks share samples, and where a step has several parts."""
    write_summary(make_results(tuple(
        trained(training_case("hybrid", index=at, dp=dp, tp=tp, pp=pp, accumulation=accumulation))
        for at, (dp, tp, pp, accumulation) in enumerate(
            ((1, 1, 1, 1), (4, 1, 1, 2), (1, 4, 1, 4), (2, 2, 2, 1), (2, 1, 2, 2))))), tmp_path)
    for row in read(tmp_path)[0]["cases"]:
        samples = row["samples_per_second"] * row["step_time_ms"] / 1e3
        assert samples == pytest.approx(row["batch_size"] * row["dp"])
        assert row["tokens_per_second"] == pytest.approx(
            row["samples_per_second"] * row["seq_length"])


def test_what_the_run_did_not_measure_is_stated(tmp_path: Path) -> None:
    case = training_case()
    for item, told in (
            (ok(make_case()), {"training": "the sweep has no case of kind training",
                               "memory": "the sweep has no case of kind training"}),
            (not_ok(case, "failed", "no memory"), {
                "training": "no case of kind training is ok",
                "memory": "no case of kind training is ok"}),
            (trained(case, memory=None), {"memory": "no rank recorded its memory"})):
        write_summary(make_results((item,)), tmp_path)
        found = read(tmp_path)[0]["results"]
        assert found["not_measured"] == told
        assert all(found[name] is None for name in told)


def test_a_plan_of_trainings_is_listed(capsys: Capture) -> None:
    cases = [training_case(index=at) for at in range(2)]
    print_plan(make_plan((*cases, replace(training_case("fsdp", index=2), skip="no such thing"))))
    text = capsys.readouterr().out
    assert "block trainings" in text and "transformer-tiny" in text
    assert "fsdp transformer-tiny seq=32 batch=4 gloo fp32 ranks=2" in text


def test_what_was_counted_stands_beside_what_was_predicted(
    tmp_path: Path, capsys: Capture,
) -> None:
    case = training_case("data", options=(("bucket_mb", 25), ("comm_hook", "none")))
    expected = predict(training_of(case))
    item = trained(case, memory={**MEMORY, "activations": 3 * 2**20,
                                 "activations_of": "results of operations"})
    detail = {rank: {**left, "counted": {
        "calls": {"all_reduce": [1, *[expected.carried_on("gloo")] * 2]},
        "missing": {"flops": "of a test"}}} for rank, left in item.detail.items()}
    results = make_results((replace(item, detail=detail),))
    lines = printed(results, tmp_path, capsys)
    table = lines[lines.index("block trainings: one step, counted"):]
    row = next(line.split() for line in table if line.startswith("data "))
    assert row[2:4] == ["4", "1"] and row[4] == "1" and row[5] == row[6] and row[-2] == "3.00"
    assert "  1 row without flops: of a test" in table
    write_summary(results, tmp_path)
    rows = read(tmp_path)[0]["results"]
    (summed,) = rows["training"]["data"]
    assert (summed["step_calls"], summed["step_calls_predicted"]) == (1, 1)
    assert summed["wire_bytes"] == summed["wire_bytes_predicted"] == expected.carried_on("gloo")
    assert summed["flops"] is None and summed["flops_predicted"] == expected.hardware_flops
    assert summed["not_counted"] == ["flops: of a test"]
    assert rows["memory"][0]["activations_bytes"] == 3 * 2**20

"""summary.json, summary.csv and hpcbench.load: every case, exact numbers, whole files."""

from __future__ import annotations

import csv
import json
import math
import runpy
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import hpcbench
from golden import RESULTS
from hpcbench.errors import FileError
from hpcbench.kinds.collective import derive as of_collectives
from hpcbench.kinds.primitive.derive import METRICS
from hpcbench.kinds.registry import kinds
from hpcbench.plan.case import STATUSES
from hpcbench.reduce.kind_facts import (
    COUNTS,
    OF_CASE,
    OF_RESULT,
    OF_TIMING,
    TIMES,
    deriver_of,
)
from hpcbench.reduce.results import Clocks
from hpcbench.reduce.results_file import open_results
from hpcbench.report.summary import (
    case_rows,
    field_names,
    write_summary,
)
from hpcbench.trace.schema import Flag
from hpcbench.trace.source import UnreadableTrace
from hpcbench.views.columns import interval_cell
from hpcbench.views.metric_tables import fields_of
from launcher import ROOT
from results_factory import (
    as_version_1,
    flagged,
    in_passes,
    make_canary,
    make_case,
    make_primitive,
    make_primitive_case,
    make_results,
    make_workload,
    mixed_results,
    not_ok,
    ok,
    shaped,
    sweep,
)


def read_json(folder: Path) -> dict[str, Any]:
    data = json.loads((folder / "summary.json").read_text())
    assert isinstance(data, dict)
    return data


def read_csv(folder: Path) -> list[dict[str, str]]:
    with (folder / "summary.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def test_both_files_have_a_row_for_every_case(tmp_path: Path) -> None:
    results = mixed_results()
    assert write_summary(results, tmp_path) == [tmp_path / "summary.json", tmp_path / "summary.csv"]
    rows, document = read_csv(tmp_path), read_json(tmp_path)
    assert [row["case_id"] for row in rows] == [item.case.case_id for item in results.cases]
    labels = [item.case.label for item in results.cases]
    assert labels == [row["label"] for row in rows]
    assert labels == [case["label"] for case in document["cases"]]
    assert [row["case_id"] for row in document["cases"]] == [row["case_id"] for row in rows]
    assert tuple(rows[0]) == field_names({"collective"}) == tuple(document["cases"][0])
    totals = document["totals"]
    assert totals["planned"] == sum(totals[status] for status in STATUSES) == 12


def test_all_columns_of_cases_are_fields_by_the_same_names() -> None:
    of_any = fields_of((*OF_CASE, *OF_RESULT, *COUNTS, *TIMES, *OF_TIMING))
    for kind, spec in kinds().items():
        named = {*of_any, *fields_of(deriver_of(spec).columns)}
        assert named <= {*field_names({kind})}


def test_numbers_are_those_of_the_table(tmp_path: Path) -> None:
    result = ok(make_case(make_workload("all_reduce", 2**30)), 1e-3)
    write_summary(make_results((result,)), tmp_path)
    row, same = read_csv(tmp_path)[0], read_json(tmp_path)["cases"][0]
    assert float(row["median_s"]) == same["median_s"] == 1e-3
    assert float(row["busbw_gb_per_s"]) == pytest.approx(1610.6127, abs=5e-5)
    assert same["busbw_factor"] == 1.5
    assert same["n_wrong"] == 0


def test_splits_and_groups_are_fields_and_the_factor_is_of_one_group(tmp_path: Path) -> None:
    result = ok(shaped("linear", 2, 0, 2**30), 1e-3)
    write_summary(make_results((result,)), tmp_path)
    row = read_json(tmp_path)["cases"][0]
    assert (row["split"], row["groups"], row["busbw_factor"]) == ("linear", 2, 0.5)
    assert row["busbw_gb_per_s"] == row["algbw_gb_per_s"] / 2
    listed = read_json(tmp_path)["results"]["communication"]["all_to_all"][0]
    assert (listed["split"], listed["groups"]) == ("linear", 2)


def test_timing_and_interval_are_fields(tmp_path: Path) -> None:
    case = make_case(mode="pipelined", batch=20, iterations=500, min_iterations=5)
    result = flagged(ok(case, 1e-3), "late_starts", "trend", n_late=9,
                     stop_reasons=("converged", "budget"), launch_medians_s=(1e-3, 1.1e-3))
    write_summary(make_results((result,)), tmp_path)
    row, same = read_json(tmp_path)["cases"][0], read_csv(tmp_path)[0]
    assert (row["mode"], row["fold"], row["calls"], row["batch"]) == (
        "pipelined", "per_call", 20, 20)
    assert (row["iterations"], row["min_iterations"]) == (500, 5)
    assert (row["ci_low_s"], row["ci_high_s"], row["ci_level"]) == (0.99e-3, 1.02e-3, 0.95)
    assert row["ci_reliable"] is True
    assert row["quality"] == ["late_starts", "trend"]
    assert row["launch_medians_s"] == [1e-3, 1.1e-3]
    assert same["quality"] == "late_starts trend"
    assert same["stop_reasons"] == "converged budget"
    assert same["launch_medians_s"] == "0.001 0.0011"
    assert float(same["communicator_s"]) == row["communicator_s"] == 0.0213


def test_an_interval_that_tables_do_not_show_is_marked(tmp_path: Path) -> None:
    good = ok(make_case())
    assert good.statistics is not None
    items = (good, replace(good, statistics=replace(good.statistics, ci_reliable=False)))
    write_summary(make_results(items), tmp_path)
    marks = [interval_cell(item.statistics) == "?" for item in items]
    assert marks == [False, True]
    assert [row["ci_reliable"] for row in read_csv(tmp_path)] == ["True", "False"]
    for row in read_json(tmp_path)["cases"]:
        assert row["ci_low_s"] is not None and row["ci_high_s"] is not None


def test_the_run_records_how_often_in_which_order_and_how_it_drifted(tmp_path: Path) -> None:
    results = make_results((ok(make_case()),))
    plan = replace(results.plan, passes=3, launches=2,
                   config={"measure": {"order": "shuffled", "seed": 7}})
    write_summary(replace(results, plan=plan, canary=make_canary(1e-4, 1.1e-4),
                          clocks=Clocks(2, 3, 1e-6, None, 5.0)), tmp_path)
    document = read_json(tmp_path)
    assert document["schema_version"] == 2
    assert document["repeats"] == {"passes": 3, "launches": 2, "order": "shuffled", "seed": 7}
    assert document["clocks"]["n_syncs"] == 3
    assert [run["median_s"] for run in document["canary"]["runs"]] == [1e-4, 1.1e-4]
    assert document["canary"]["drift"] == pytest.approx(0.1)


def test_what_libraries_logged_is_a_field_unknown_where_they_did_not(tmp_path: Path) -> None:
    told = {"algorithm": "RING", "protocol": "LL", "channels": "8", "transport": "P2P/CUMEM"}
    results = (ok(make_case(), library=told),
               ok(make_case(index=1), library=dict.fromkeys(told, "unknown")),
               not_ok(make_case(index=2), "skipped", "no GPU"))
    write_summary(make_results(results, environment_hash="0123456789abcdef"), tmp_path)
    document = read_json(tmp_path)
    rows = [{name: row[name] for name in told} for row in document["cases"]]
    assert rows == [told, dict.fromkeys(told, "unknown"), dict.fromkeys(told)]
    assert [row["transport"] for row in read_csv(tmp_path)] == ["P2P/CUMEM", "unknown", ""]
    assert document["environment_hash"] == "0123456789abcdef"


def test_results_of_schema_version_1_have_the_old_numbers_and_no_new_ones(tmp_path: Path) -> None:
    write_summary(make_results((as_version_1(ok(make_case(), 1e-3)),)), tmp_path)
    document = read_json(tmp_path)
    row = document["cases"][0]
    assert (row["median_s"], row["fold"]) == (1e-3, "local_max")
    assert all(row[name] is None for name in (
        *fields_of(one for one in OF_TIMING if one.name != "fold"), "algorithm", "launch_medians_s",
        "ci_low_s", "ci_level", "ci_reliable"))
    assert document["environment_hash"] is None
    assert document["canary"] is document["clocks"] is None
    assert document["repeats"]["seed"] is None


@given(st.floats(1e-7, 1e3), st.sampled_from(("isolated", "pipelined", "barrier_start")))
def test_a_rate_is_derived_once_from_the_printed_time(median_s: float, mode: str) -> None:
    case = make_case(make_workload("all_reduce", 2**20), mode=mode)
    row = case_rows(make_results((ok(case, median_s),)))[0]
    rates = of_collectives.bandwidth(case.workload, case.world_size, row["median_s"])
    assert rates is not None
    assert row["algbw_gb_per_s"] == rates.algbw_bytes_per_s / 1e9


def test_how_mpi_reached_the_gpus_is_a_field(tmp_path: Path) -> None:
    case = make_case(make_workload("all_reduce", 8), backend="mpi", device="cuda")
    how = {"how": "staged", "reason": "not aware"}
    staged = ok(case, 1e-3, detail={"0": {"device_memory": how}})
    write_summary(make_results((staged, ok(make_case(make_workload("all_reduce", 16))))), tmp_path)
    document = read_json(tmp_path)
    assert [row["device_memory"] for row in document["cases"]] == ["staged", None]
    assert document["results"]["communication"]["allreduce"][0]["device_memory"] == "staged"


def test_a_case_without_statistics_has_no_numbers(tmp_path: Path) -> None:
    write_summary(mixed_results(), tmp_path)
    wrong = read_json(tmp_path)["cases"][1]
    assert wrong["status"] == "wrong"
    assert wrong["n_wrong"] == 3
    assert wrong["blamed_rank"] == 2
    assert wrong["median_s"] is wrong["algbw_gb_per_s"] is wrong["n"] is None
    assert read_csv(tmp_path)[1]["median_s"] == ""


def test_primitives_have_their_problem_their_rates_and_what_they_are_compared_with(
    tmp_path: Path,
) -> None:
    names = ("compute_only", "comm_only", "torch", "chunked_pipeline")
    times = ((6e-3, 12e-3), (4e-3, 8e-3), (10e-3, 20e-3), (8e-3, 18e-3))
    items = [in_passes(make_primitive_case(make_primitive(name), index=index), *medians)
             for index, (name, medians) in enumerate(zip(names, times, strict=True))]
    write_summary(make_results((*items, ok(make_case(index=4)))), tmp_path)
    document, flat = read_json(tmp_path), read_csv(tmp_path)
    compute, communicate, torch, fused, collective = document["cases"]
    assert (fused["primitive"], fused["implementation"], fused["order"]) == (
        "tp_columnwise", "chunked_pipeline", "AG_before")
    assert fused["options"] == ["chunks=4", "weight=sharded"]
    assert (fused["problem_m"], fused["problem_n"], fused["problem_k"]) == (4096, 1024, 512)
    assert fused["flops"] * 4 == fused["total_flops"] == 2 * 4096 * 1024 * 512
    assert fused["busiest_rank_tflop_per_s"] == fused["flops"] / fused["median_s"] / 1e12
    assert fused["all_ranks_tflop_per_s"] == pytest.approx(4 * fused["busiest_rank_tflop_per_s"])
    assert [fused[f"overlap_efficiency{end}"] for end in ("", "_least", "_greatest")] == (
        pytest.approx([0.375, 0.25, 0.5]))
    assert fused["exposed_s"] == pytest.approx(4e-3)
    assert fused["times_longest_part_greatest"] == pytest.approx(1.5)
    assert fused["speedup_over_torch"] == pytest.approx((10 / 8 + 20 / 18) / 2)
    assert (fused["compute_only_s"], fused["comm_only_s"]) == (12e-3, 8e-3)
    assert fused["busbw_gb_per_s"] is fused["busbw_factor"] is fused["collective"] is None
    assert communicate["busbw_gb_per_s"] == pytest.approx(
        communicate["wire_bytes"] / communicate["median_s"] / 1e9)
    assert communicate["busiest_rank_tflop_per_s"] is None
    assert compute["overlap_efficiency"] is None and torch["speedup_over_torch"] == 1.0
    assert all(collective[name] is None for name in {*fields_of(METRICS)} - {*fields_of(
        of_collectives.METRICS)})
    assert (flat[3]["options"], flat[3]["pass_medians_s"]) == (
        "chunks=4 weight=sharded", "0.008 0.018")
    listed = document["results"]["primitives"]["tp_columnwise"]
    assert [row["implementation"] for row in listed] == list(names)
    assert listed[3]["overlap_efficiency"] == fused["overlap_efficiency"]


def test_what_a_primitive_is_not_compared_with_is_stated(tmp_path: Path) -> None:
    alone = in_passes(make_primitive_case(), None, 1e-3)
    skipped = not_ok(make_primitive_case(make_primitive("comm_only"), index=1), "skipped", "none")
    write_summary(make_results((alone, skipped)), tmp_path)
    row, same = read_json(tmp_path)["cases"][0], read_csv(tmp_path)[0]
    reasons = row["not_compared"]
    assert [reason.split()[0] for reason in reasons] == ["compute_only", "comm_only"]
    assert same["not_compared"] == "; ".join(reasons)
    assert row["pass_medians_s"] == [None, 1e-3] and same["pass_medians_s"] == "- 0.001"
    assert len(read_json(tmp_path)["results"]["primitives"]["tp_columnwise"]) == 1


def test_fields_of_other_tools_are_there(tmp_path: Path) -> None:
    cases = sweep(("all_reduce", "all_gather", "reduce_scatter", "send_recv", "barrier"), ("gloo",))
    write_summary(make_results(tuple(ok(case) for case in cases)), tmp_path)
    document = read_json(tmp_path)
    assert document["name"] == "demo"
    assert document["world_size"] == 4
    assert document["timestamp"].startswith("2026-03-01T12:00:00")
    assert document["config"]["warmup_iters"] == 5
    assert document["config"]["benchmark_iters"] == 20
    assert document["config"]["device"] == "cpu"
    communication = document["results"]["communication"]
    for name in ("allreduce", "allgather", "reduce_scatter", "p2p"):
        assert [row["size_bytes"] for row in communication[name]] == [8, 1024, 2**20]
    assert communication["barrier"][0]["algbw_gb_per_s"] is None


def test_config_is_of_the_cases_that_ran(tmp_path: Path) -> None:
    ran = ok(make_case())
    skipped = not_ok(make_case(index=1, backend="nccl", device="cuda", iterations=7), "skipped", "")
    write_summary(make_results((ran, skipped)), tmp_path)
    config = read_json(tmp_path)["config"]
    assert (config["device"], config["benchmark_iters"], config["mode"]) == ("cpu", 20, "isolated")


def test_an_open_number_of_iterations_is_called_auto(tmp_path: Path) -> None:
    auto = ok(make_case(iterations=500, min_iterations=5))
    fixed = ok(make_case(index=1, iterations=20, min_iterations=20))
    write_summary(make_results((auto,)), tmp_path)
    assert read_json(tmp_path)["config"]["benchmark_iters"] == "auto"
    write_summary(make_results((auto, fixed)), tmp_path)
    assert read_json(tmp_path)["config"]["benchmark_iters"] == [20, "auto"]


def test_what_was_not_measured_is_stated_not_invented(tmp_path: Path) -> None:
    write_summary(mixed_results(), tmp_path)
    found = read_json(tmp_path)["results"]
    assert found["training"] is found["memory"] is None
    assert found["not_measured"] == dict.fromkeys(
        ("training", "memory"), "the sweep has no case of kind training")
    assert found["primitives"] == {}


def test_no_environment_and_no_stderr_reaches_the_files(tmp_path: Path) -> None:
    for path in write_summary(mixed_results(), tmp_path):
        text = path.read_text()
        assert "must-not-appear" not in text
        assert "Killed" not in text


def test_findings_and_reasons_are_kept_verbatim(tmp_path: Path) -> None:
    write_summary(mixed_results(), tmp_path)
    document = read_json(tmp_path)
    assert document["findings"] == [
        {"code": "HB110", "scope": "run", "message": "rank 3 has no trace"}
    ]
    assert read_csv(tmp_path)[4]["reason"] == "nccl needs a CUDA device; none is visible"


def test_an_old_summary_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text("old")
    write_summary(make_results(()), tmp_path)
    assert read_json(tmp_path)["cases"] == []
    assert sorted(path.name for path in tmp_path.iterdir()) == ["summary.csv", "summary.json"]


def test_a_folder_that_cannot_be_written_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(FileError, match="summary.json: cannot be written"):
        write_summary(mixed_results(), tmp_path / "file")


EXPECTED = ROOT / "tests/data/golden/expected"


@pytest.mark.parametrize("name", RESULTS)
def test_values_are_those_of_the_summary(name: str, tmp_path: Path) -> None:
    runs = hpcbench.load(RESULTS[name])
    frame = runs.to_pandas().set_index("case_id")
    with (EXPECTED / name / "summary.csv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["case_id"] for row in rows] == [case.case_id for case in runs.cases]
    for row, case in zip(rows, runs.cases, strict=True):
        assert (row["label"], row["status"]) == (case.label, case.status)
        assert -1 not in case.metrics.values(), "which stands for none"
        assert frame.loc[case.case_id, "backend"] == row["backend"] == case.parameters["backend"]
        if row["median_s"]:
            assert case.median_s == pytest.approx(float(row["median_s"]))
            assert frame.loc[case.case_id, "median_s"] == case.median_s == case.metrics["median_s"]
        else:
            assert case.median_s is None and math.isnan(frame.loc[case.case_id, "median_s"])
        assert (case.interval is None) == (row["ci_reliable"] != "True")
    (run,) = runs.runs
    for rows in (frame, runs.to_pandas(samples=True)):
        assert set(zip(rows["run_id"], rows["run"], strict=True)) <= {(run.run_id, run.name)}
    assert frame.attrs["runs"][0]["run_id"] == run.run_id != run.name


@pytest.mark.parametrize("name", RESULTS)
def test_samples_are_those_of_the_file(name: str) -> None:
    runs = hpcbench.load(str(RESULTS[name]))
    frame = runs.to_pandas(samples=True)
    with open_results(RESULTS[name]) as file:
        for case in runs.cases:
            raw = file.samples(case.case_id)
            if raw is None:
                assert case.samples.size == 0
                continue
            calls = np.where(raw.flags[0] & Flag.SINGLE, 1, case.metrics["batch"])
            expected = (raw.end_ns - raw.start_ns) / 1e9 / calls
            assert np.allclose(case.samples, expected)
            own = frame[frame["case_id"] == case.case_id]
            assert len(own) == expected.size
            of_last = own[own["rank"] == raw.ranks[-1]].sort_values("iteration")
            assert np.allclose(of_last["seconds"], expected[-1])
            assert list(of_last["counted"]) == list(case.counted)
            assert set(case.phases) == set(raw.phases)


def test_several_runs_stand_in_one_table(tmp_path: Path) -> None:
    for name, path in RESULTS.items():
        (tmp_path / name).mkdir()
        shutil.copy2(path, tmp_path / name / "results.h5")
    runs = hpcbench.load(tmp_path / "*" / "results.h5")
    assert len(runs) == len(RESULTS)
    assert len(runs.to_pandas()) == len(runs.cases) == sum(
        len(hpcbench.load(path).cases) for path in RESULTS.values())
    again = hpcbench.load([tmp_path / name for name in sorted(RESULTS)])
    assert [run.run_id for run in again.runs] == [run.run_id for run in runs.runs]


def test_cases_are_filtered_by_what_distinguishes_them() -> None:
    cases = hpcbench.load(RESULTS["mixed"]).cases
    kinds = {case.parameters["kind"] for case in cases}
    for kind in kinds:
        found = cases.filter(kind=kind)
        assert {case.parameters["kind"] for case in found} == {kind}
        assert len(found) < len(cases)
    assert len(cases.filter(kind=kinds, status="ok")) == sum(c.status == "ok" for c in cases)
    assert cases[cases[0].case_id].label == cases[0].label and len(cases[:2]) == 2
    with pytest.raises(KeyError, match="bakcend"):
        cases.filter(bakcend="gloo")
    with pytest.raises(KeyError, match="nothing"):
        cases["nothing"]


def test_times_are_recomputed_from_stamps_as_the_page_says() -> None:
    """size_bytes is no parameter, and the maximum of each rank's own time is not what is printed.
    """
    for case in hpcbench.load(RESULTS["collective"]).cases.filter(fold="global"):
        stamps = case.run.samples(case.case_id)
        times_ns = stamps.end_ns.max(axis=0) - stamps.start_ns.min(axis=0)
        assert np.isclose(np.median(times_ns[case.counted]) / 1e9, case.median_s, rtol=1e-9)
        assert case.metrics["size_bytes"] <= case.parameters["requested_bytes"] or not (
            case.parameters["requested_bytes"])


def test_an_arrow_table_has_the_same_columns_and_names_its_run() -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
    runs = hpcbench.load(RESULTS["collective"])
    table = runs.to_arrow()
    assert isinstance(table, pyarrow.Table)
    assert table.column_names == list(runs.to_pandas().columns)
    assert runs.runs[0].run_id.encode() in table.schema.metadata[b"runs"]
    assert runs.to_arrow(samples=True).num_rows == len(runs.to_pandas(samples=True))
    absent = int(runs.to_pandas()["of_link"].isna().sum())  # SQL may overlook NaN in its Parquet
    assert absent and table["of_link"].null_count == absent


def test_a_polars_frame_has_the_same_columns() -> None:
    pytest.importorskip("polars", reason="polars is not installed")
    runs = hpcbench.load(RESULTS["collective"])
    assert runs.to_polars().columns == list(runs.to_pandas().columns)


def test_a_library_that_is_not_there_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    runs = hpcbench.load(RESULTS["collective"])
    for library, asked in (("pandas", runs.to_pandas), ("polars", runs.to_polars),
                           ("pyarrow", runs.to_arrow)):
        monkeypatch.setitem(__import__("sys").modules, library, None)
        call: Callable[[], Any] = asked
        with pytest.raises(ImportError, match=library):
            call()


def test_what_is_no_results_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "other.h5").write_bytes(b"something else")
    for bad in ("none*.h5", "none.h5", "other.h5", "."):
        with pytest.raises(FileError) as raised:
            hpcbench.load(tmp_path / bad)
        assert "\n" not in str(raised.value)


def test_the_example_draws_and_prints(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch,
) -> None:
    script = runpy.run_path(str(ROOT / "examples/load_and_plot.py"))
    script["main"](RESULTS["collective"], tmp_path / "times.png")
    assert (tmp_path / "times.png").stat().st_size > 1000
    monkeypatch.chdir(tmp_path)
    (tmp_path / "times.png").unlink()
    script["main"](RESULTS["collective"])
    assert (tmp_path / "times.png").stat().st_size > 1000
    assert "median_s" in capsys.readouterr().out


def test_a_file_is_loaded_once_by_its_own_path(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    shutil.copy2(RESULTS["mixed"], tmp_path / "run" / "results.h5")
    (tmp_path / "latest").symlink_to("run")
    runs = hpcbench.load(str(tmp_path / "*" / "results.h5"))
    assert [one.path for one in runs.runs] == [tmp_path / "run" / "results.h5"]
    assert len(hpcbench.load([tmp_path / "run", tmp_path / "latest/results.h5"])) == 1
    (run,) = hpcbench.load(tmp_path / "run").runs
    assert run.path == tmp_path / "run" / "results.h5"


def test_samples_of_a_file_that_was_replaced_or_removed(tmp_path: Path) -> None:
    """They are those of the new file, which is checked; there are none where it is gone."""
    file = tmp_path / "results.h5"
    shutil.copy2(RESULTS["collective"], file)
    loaded = hpcbench.load(file)
    one = next(case for case in loaded.cases if case.samples.size)
    before = one.samples
    damaged = bytearray(file.read_bytes())
    damaged[-1] ^= 1
    file.unlink()
    file.write_bytes(damaged)
    with pytest.raises(UnreadableTrace):
        _ = one.samples
    shutil.copy(RESULTS["collective"], file)
    assert (one.samples == before).all()
    file.unlink()
    with pytest.raises(FileError):
        _ = one.samples


def test_without_samples_the_columns_are_there() -> None:
    frame = hpcbench.load([]).to_pandas(samples=True)
    assert len(frame) == 0 and not frame["counted"].any()

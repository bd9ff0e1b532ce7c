"""What people read of trainings: tables, definitions, summaries, and the numbers in them."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.config.axes import UNCHECKED
from hpcbench.kinds.training.plan.models import flops, shape_of
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.records import with_records
from hpcbench.reduce.results import Results
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_summary
from results_factory import make_case, make_plan, make_results, not_ok, ok
from training_results import MEMORY, strategies, trained, training_case, with_clear, with_peak

Capture = pytest.CaptureFixture[str]


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

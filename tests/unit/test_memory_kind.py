"""Kind memory: how its cases are planned, and what follows from what ranks told."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hpcbench.answers.compare_inputs import Side, cases_of
from hpcbench.config.load import check_config, load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.memory.derive import HELD as HELD_COLUMNS
from hpcbench.kinds.memory.derive import PREDICTED as PREDICTED_COLUMNS
from hpcbench.kinds.memory.derive import MemoryDeriver
from hpcbench.kinds.memory.plan import least_bytes, work_of
from hpcbench.kinds.memory.present import MEASURED, PREDICTED, who
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import CaseResult
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_summary
from hpcbench.report.terminal import table_lines
from hpcbench.trace.schema import check_types
from hpcbench.views.metric_tables import ShownColumn, column_of
from hpcbench.views.table import Column, Group, Row, Show, Table
from launcher import ROOT
from results_factory import make_results, ok
from training_results import trained, training_case

BLOCK: dict[str, Any] = {"kind": "memory", "model": "gpt2", "layers": 2, "hidden": 64, "heads": 4,
                         "vocab": 512, "seq_length": 16, "strategies": ["data", "fsdp"]}
HELD = {"parameters": 400, "gradients": 300, "optimizer_state": 200, "activations": 90,
        "temporary": 10}


def planned(**block: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [BLOCK | block]}, "c.json"), 2).cases


def complaint(**block: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        planned(**block)
    return str(caught.value)


def result(case: Case, *peaks: int, **more: Any) -> CaseResult:
    """Return an ok case whose ranks held these multiples of HELD."""
    detail = {str(rank): {
        "held": {**{part: size * peak for part, size in HELD.items()}, "overhead": 50,
                 "of": "storages of one step"},
        "capacity": {"bytes": 10_000, "of": "the node's"}, **more}
        for rank, peak in enumerate(peaks)}
    return ok(case, 1e-3, detail=detail)


def values_of(item: CaseResult) -> Values:
    return MemoryDeriver().derive([item], {})[item.case.case_id]


def test_a_case_is_a_training_with_few_steps_and_an_id_of_its_own() -> None:
    own, trainings = planned(), planned(kind="training")
    assert [(case.kind, case.label.split()[:3]) for case in own] == [
        ("memory", ["memory", "gpt2", "data"]), ("memory", ["memory", "gpt2", "fsdp"])]
    assert not {case.case_id for case in own} & {case.case_id for case in trainings}
    for case, training in zip(own, trainings, strict=True):
        assert (case.warmup, case.iterations, case.is_fixed) == (1, 2, True)
        assert work_of(case).training == replace(training_of(training), count_step=False)
        assert case.memory_bytes == training.memory_bytes
    assert [case.iterations for case in planned(iterations=7)] == [7, 7]
    assert [case.iterations for case in planned(max_steps=3)] == [3, 3]


def test_a_stored_case_is_read_as_it_was() -> None:
    for case in planned():
        stored = json.loads(json.dumps(case_to_json(case)))
        assert case_from_json(stored) == case
        check_types(case.workload)
        stored["workload"]["training"]["layers"] = "many"
        with pytest.raises(ValueError, match="layers"):
            check_types(case_from_json(stored).workload)


def test_what_cannot_be_followed_is_refused() -> None:
    assert "communication only holds no model" in complaint(communication=["on", "only"])
    assert "compile true hides" in complaint(compile=True)
    assert "strategies.nope" in complaint(strategies="nope")


def test_what_does_not_fit_is_skipped_with_what_would() -> None:
    config = {"benchmarks": [BLOCK | {"batch_size": 4096}],
              "hardware": {"memory_per_device_gb": 0.05}}
    cases = make_plan(check_config(config, "c.json"), 2).cases
    assert all(case.skip and "to fit, as predicted: batch_size" in case.skip for case in cases)


def test_a_file_without_such_a_block_gets_the_kind_s_own_where_it_is_named(
    tmp_path: Path,
) -> None:
    collective = {"kind": "collective", "collective": "all_reduce", "size": "8"}
    file = tmp_path / "sweep.json"
    file.write_text(json.dumps({"benchmarks": [collective]}))
    config = load_config(file, [("strategy", "fsdp"), ("benchmark", "memory")])
    cases = make_plan(config, 2).cases
    assert {(case.block, work_of(case).training.strategy) for case in cases} == {
        ("own-memory", "fsdp")}
    assert "the file has no block of kind memory: its default block is run" in config.notes
    assert [block.kind for block in load_config(file).benchmarks] == ["collective"]
    file.write_text(json.dumps({"benchmark": "memory", "benchmarks": [collective, BLOCK]}))
    assert len(load_config(file).benchmarks) == 2
    with pytest.raises(ConfigError, match="no block is of kind primitive"):
        make_plan(load_config(file, [("benchmark", "primitive")]), 2)


def test_the_shipped_job_is_the_kind_s_own_block() -> None:
    block, search = load_config(ROOT / "jobs/memory.yaml").benchmarks
    assert search.name == "largest"
    own = check_config({"benchmarks": [{"kind": "memory", **type(block).own}]}, "own").benchmarks
    assert [replaced.model_copy(update={"name": None}) for replaced in (block, *own)] == [*own] * 2


def test_memory_is_not_compared_by_time() -> None:
    case = planned()[0]
    side = Side("a", (make_results((result(case, 100, 90),)),))
    (found,) = cases_of(side).values()
    assert found.launch_s == () and found.problem


def test_the_values_are_of_the_rank_with_most() -> None:
    case = planned()[0]
    values, expected = values_of(result(case, 1, 2)), predict(work_of(case).training).memory
    assert values["peak_rank"] == 1
    assert [values[one.name] for one in HELD_COLUMNS] == [2 * size for size in HELD.values()]
    assert values["peak_bytes"] == 2000
    assert (values["overhead_bytes"], values["utilisation"]) == (50, 0.2)
    assert [values[one.name] for one in PREDICTED_COLUMNS] == [*expected.parts().values()]
    assert values["deviation"] == 2000 / expected.total - 1
    assert values["used_bytes"] == 3000
    least = least_bytes(work_of(case).training)
    assert values["efficiency"] == least / 3000


@pytest.mark.parametrize(("optimizer", "each"), [("adamw", 16), ("sgd", 8)])
def test_the_least_is_parameters_gradients_and_states_however_it_is_spread(
    optimizer: str, each: int,
) -> None:
    for case in planned(optimizer=optimizer, strategies=["data", "fsdp", "tensor", "pipeline"]):
        work = work_of(case).training
        assert least_bytes(work) == each * work.parameters


def test_the_least_of_adapters_has_gradients_of_these_only() -> None:
    work = work_of(planned(strategies="lora")[0]).training
    assert least_bytes(work) == 4 * work.parameters + 16 * work.adapters


def test_without_all_ranks_there_is_no_efficiency_and_without_any_no_values() -> None:
    case = planned()[0]
    values = values_of(result(case, 1))
    assert (values["used_bytes"], values["efficiency"]) == (None, None)
    assert not values_of(ok(case, 1e-3))
    assert not values_of(replace(result(case, 1, 1), status="failed"))


def test_a_process_that_grew_by_less_than_it_held_has_no_overhead() -> None:
    case = planned()[0]
    item = result(case, 1, 1)
    for left in item.detail.values():
        left["held"]["overhead"] = -7
    assert values_of(item)["overhead_bytes"] is None


def test_summaries_have_rows_of_trainings_and_of_this_kind_with_one_meaning(
    tmp_path: Path,
) -> None:
    results = make_results((trained(training_case()), result(planned()[0], 1, 2)))
    write_summary(results, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text("utf-8"))["results"]
    training, own = found["memory"]
    assert (training["kind"], own["kind"]) == ("training", "memory")
    assert set(training) < set(own)
    assert (own["peak_bytes"], own["activations_bytes"], own["peak_rank"]) == (2000, 180, 1)
    assert own["peak_of"] == "storages of one step"
    alone = make_results((result(planned()[0], 1, 2),))
    write_summary(alone, tmp_path)
    found = json.loads((tmp_path / "summary.json").read_text("utf-8"))["results"]
    assert len(found["memory"]) == 1
    assert set(found["not_measured"]) == {"training"}


def test_tables_show_measured_beside_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    cases = planned(checkpointing=["none", "full"])
    print_plan(make_plan(check_config({"benchmarks": [BLOCK]}, "c.json"), 2))
    assert "memory" in capsys.readouterr().out
    print_results(make_results(tuple(result(case, 1, 2) for case in cases)), tmp_path, explain=True)
    text = capsys.readouterr().out
    for words in ("deviation", "efficiency", ": predicted", "dev.", "checkpointing=full",
                  "the capacity is the node's", "temporary = copies of weights"):
        assert words in text, words


@pytest.mark.parametrize("shown", [MEASURED, PREDICTED])
def test_tables_of_memory_fit_100_columns(shown: tuple[ShownColumn, ...]) -> None:
    columns = tuple(map(column_of, (*who({}), *shown)))

    def cell(column: Column, row: int) -> str | float:
        if column.show is Show.TEXT:
            return "word" * (1 + row)
        return 1.234 * 2**(32 - row) if column.show is Show.MIB else 1 + row

    rows = tuple(Row(tuple(cell(column, row) for column in columns)) for row in range(2))
    lines = [*table_lines(Table("memory", columns, (Group("", rows),)), 100)]
    assert max(len(line) for line in lines if "left out" not in line.plain) <= 100

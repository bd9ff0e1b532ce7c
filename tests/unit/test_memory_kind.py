"""Kind memory: how its cases are planned, and the search for the largest batch."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcbench.answers.compare_inputs import Side, cases_of
from hpcbench.config.load import check_config, load_config
from hpcbench.errors import ConfigError
from hpcbench.kinds.memory.derive import HELD as HELD_COLUMNS
from hpcbench.kinds.memory.derive import PREDICTED as PREDICTED_COLUMNS
from hpcbench.kinds.memory.derive import MemoryDeriver
from hpcbench.kinds.memory.plan import (
    MemoryWork,
    Search,
    bracket_of,
    least_bytes,
    next_batch,
    predicted_largest,
    resolution,
    with_batch,
    work_of,
)
from hpcbench.kinds.memory.present import MEASURED, PREDICTED, who
from hpcbench.kinds.training.plan.any_model import end_tensors, model_of, part_tensors
from hpcbench.kinds.training.plan.planner import predicted
from hpcbench.kinds.training.plan.predict import predict
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.launch.messages import PlainCase
from hpcbench.launch.supervisor import run_tries
from hpcbench.launch.verdict import Evidence, RankOutcome, Verdict, how_ended, judge
from hpcbench.launch.worker_group import CaseOutcome, Observation, WorkerGroup
from hpcbench.plain import Plain
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.plan.workload import MOST_TRIES, TRIES, Ended
from hpcbench.reduce.metric import Values
from hpcbench.reduce.results import CaseResult
from hpcbench.report.console import print_results
from hpcbench.report.plan_lines import print_plan
from hpcbench.report.summary import write_summary
from hpcbench.report.terminal import table_lines
from hpcbench.trace.schema import check_types, no_rows
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
        tensors = end_tensors(model_of(work), alone=False)
        count = sum(map(len, tensors)) + work.layers * len(part_tensors(model_of(work), 0))
        steps = 4 * count if optimizer == "adamw" else 0
        assert least_bytes(work) == each * work.parameters + steps


def test_the_least_of_adapters_has_gradients_of_these_only() -> None:
    work = work_of(planned(strategies="lora")[0]).training
    tensors = 2 * 6 * work.layers
    assert least_bytes(work) == 4 * work.parameters + 16 * work.adapters + 4 * tensors


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


SEARCH: dict[str, Any] = {"kind": "memory", "model": "gpt2", "layers": 2, "hidden": 64, "heads": 4,
                         "vocab": 512, "seq_length": 16, "strategies": "data",
                         "largest_batch": True, "memory_limit": "64MiB"}
LIMIT = 64 * 2**20
HELD_IN_TRIES = {"parameters": 400, "gradients": 300, "optimizer_state": 200, "activations": 90,
        "temporary": 10, "overhead": 50, "of": "storages of one step"}


def case_of(more: dict[str, Any] | None = None, **block: Any) -> Case:
    config = check_config({"benchmarks": [SEARCH | block], **(more or {})}, "c.json")
    case, = make_plan(config, 2).cases
    return case


def refusal(more: dict[str, Any] | None = None, **block: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        case_of(more, **block)
    return str(caught.value)


@given(largest=st.integers(0, 10**8), first=st.integers(1, 10**9), unit=st.integers(1, 12))
def test_every_search_ends_with_the_largest_to_its_resolution(
    largest: int, first: int, unit: int,
) -> None:
    search, ends = Search(unit, first * unit), list[tuple[int, bool]]()
    while (batch := next_batch(search, ends)) is not None:
        assert batch % unit == 0 and batch not in dict(ends), "each batch is tried once"
        ends.append((batch, batch <= largest * unit))
        assert len(ends) <= MOST_TRIES
    fits = max((batch for batch, is_ok in ends if is_ok), default=0)
    too_large = min(batch for batch, is_ok in ends if not is_ok)
    assert fits <= largest * unit < too_large
    assert too_large - fits <= resolution(fits // unit) * unit


def test_a_search_from_a_good_prediction_takes_few_tries() -> None:
    ends: list[tuple[int, bool]] = []
    while (batch := next_batch(Search(1, 100), ends)) is not None:
        ends.append((batch, batch <= 93))
    assert ends == [(100, False), (88, True), (94, False), (91, True)]


def test_all_that_can_be_asked_for_may_fit() -> None:
    ends: list[tuple[int, bool]] = []
    while (batch := next_batch(Search(2**20, 2**20), ends)) is not None:
        ends.append((batch, True))
    assert ends[-1] == (2**31, True)
    assert bracket_of([{"batch": 8, "ended": "ok"}]) == (8, None)


def test_a_case_has_the_limit_and_begins_with_what_is_predicted_to_fit() -> None:
    case = case_of()
    work, search = work_of(case).training, work_of(case).search
    assert search is not None and (search.unit, search.limit_bytes) == (1, LIMIT)
    assert predicted(with_batch(work, search.first)) <= LIMIT
    assert predicted(with_batch(work, search.first + 1)) > LIMIT
    assert (case.memory_bytes, case.skip) == (LIMIT, None)
    assert "batch=largest limit=64MiB" in case.label
    assert case.case_id != case_of(memory_limit="128MiB").case_id
    assert case.workload.choice().axes["largest_batch"] is True
    many = make_plan(check_config({"benchmarks": [
        SEARCH | {"memory_limit": ["64MiB", "1GiB"], "checkpointing": ["none", "full"]}]}, "c"), 2)
    assert len(many.cases) == 4
    stored = json.loads(json.dumps(case_to_json(case)))
    assert case_from_json(stored) == case
    check_types(case.workload)


def test_supervisors_and_workers_send_each_other_searches_and_other_cases() -> None:
    sent: Plain[Case] = Plain(PlainCase)
    for case in (case_of(), case_of(largest_batch=None, memory_limit=None)):
        assert sent.read(sent.write(case)) == case


def test_without_a_limit_a_search_begins_with_one_unit_or_with_what_is_declared() -> None:
    search = work_of(case_of(memory_limit=None)).search
    assert search == Search(1, 1, 0)
    declared = work_of(case_of({"hardware": {"memory_per_device_gb": 1}}, memory_limit=None)).search
    assert declared is not None and declared.limit_bytes == 10**9 and declared.first > 1


def test_batches_are_multiples_of_what_can_be_divided() -> None:
    for block, unit in (({"accumulation": 3}, 3),
                        ({"strategies": {"pipeline": {"microbatches": 4}}}, 4),
                        ({"strategies": {"pipeline": {"microbatches": 4}}, "accumulation": 2}, 8)):
        search = work_of(case_of(**block)).search
        assert search is not None and search.unit == unit and search.first % unit == 0
    assert "cannot be divided among 3 heads" in str(case_of(heads=3).skip)


def test_what_contradicts_itself_is_refused() -> None:
    assert "give largest_batch true, or take memory_limit away" in refusal(largest_batch=None)
    assert "take one of the two away" in refusal(batch_size=4)
    assert "too little for a step of torch; give 16MiB or more" in refusal(memory_limit=8)
    assert "is not a size" in refusal(memory_limit="much")
    both = refusal({"launch": {"memory_limit_gb": 1}})
    assert "memory_limit and launch.memory_limit_gb both limit the workers; take one" in both


def test_what_cannot_be_searched_here_is_a_skip() -> None:
    assert "new process for each try" in str(case_of({"launch": {"inline": True}}).skip)
    assert "new process for each try" in str(case_of(backend="mpi").skip)
    small = case_of({"hardware": {"memory_per_device_gb": 0.03}})
    assert "of hardware.memory_per_device_gb 0.03" in str(small.skip)


def test_a_fault_can_be_of_the_first_try() -> None:
    search = work_of(case_of()).search
    fault = {"kind": "kill", "rank": 1}
    assert case_of({"fault": [{**fault, "case": f"memory*batch={search.first} *"}]}).skip is None
    assert "could never happen" in refusal({"fault": [{**fault, "case": "memory*batch=1 *"}]})


def test_the_predicted_largest_is_a_multiple_and_may_be_none() -> None:
    work = work_of(case_of()).training
    one, three = (predicted_largest(work, unit, LIMIT) for unit in (1, 3))
    assert one and three and three % 3 == 0 and 0 <= one - three < 3
    assert predicted_largest(work, 1, 1000) == 0
    assert predicted_largest(replace(work, strategy="of a plug-in"), 1, LIMIT) is None


@pytest.mark.parametrize(("outcomes", "ended"), [
    ([RankOutcome.OK, RankOutcome.OK], Ended.OK),
    ([RankOutcome.EXCEPTION, RankOutcome.STUCK], Ended.OUT_OF_MEMORY),
    ([RankOutcome.EXCEPTION, RankOutcome.DIED], Ended.DIED),
    ([RankOutcome.STUCK, RankOutcome.DIED], Ended.DIED),
    ([RankOutcome.STUCK, RankOutcome.STUCK], Ended.ERROR),
    ([RankOutcome.HALTED, RankOutcome.DIED], Ended.ERROR)])
def test_how_all_ranks_end_a_try(outcomes: list[RankOutcome], ended: Ended) -> None:
    """Rank 0 says that memory was refused where it raised anything."""
    evidence = [Evidence(rank, one, out_of_memory=one is RankOutcome.EXCEPTION)
                for rank, one in enumerate(outcomes)]
    assert how_ended(evidence, judge(evidence, 1.0)) is ended
    refused = [replace(one, out_of_memory=False) for one in evidence]
    if ended is Ended.OUT_OF_MEMORY:
        assert how_ended(refused, judge(refused, 1.0)) is Ended.ERROR


class Workers:
    """Workers that can train batches up to ``most``; of ``others`` the end is given."""

    rows = no_rows()

    def __init__(self, most: int, **others: tuple[Ended, str, str]) -> None:
        self.most, self.others = most, others
        self.tried: list[int] = []
        self.dismissed = 0

    def dismiss(self) -> None:
        self.dismissed += 1

    def run(self, case: Case) -> CaseOutcome:
        search = work_of(case).search
        self.tried.append(search.batch)
        fits = Ended.OK if search.batch <= self.most else Ended.OUT_OF_MEMORY
        ended, stop, reason = self.others.get(f"b{search.batch}", (fits, "", ""))
        verdict = Verdict("ok" if ended is Ended.OK else "failed", reason, -1)
        own = Observation(Evidence(0, RankOutcome.OK), detail={"of": search.batch})
        return CaseOutcome(verdict, own, stop, (), ended)

    def all_tries(self, case: Case) -> CaseOutcome:
        return run_tries(case, cast(WorkerGroup, self), self.run, keeps_tries=True).outcome


def unseeded() -> Case:
    return case_of(memory_limit=None)


def test_the_case_ends_as_its_largest_batch_did_and_records_all_tries() -> None:
    workers = Workers(5)
    outcome = workers.all_tries(unseeded())
    assert workers.tried == [1, 2, 4, 8, 6, 5]
    assert workers.dismissed == 7, "each try has new workers, and so has what comes after"
    assert (outcome.verdict.status, outcome.own.detail["of"]) == ("ok", 5)
    told = outcome.own.detail[TRIES]
    assert [(one["batch"], one["ended"]) for one in told][2:4] == [(4, "ok"), (8, "out of memory")]


def test_a_death_is_the_end_of_a_try_and_any_other_error_that_of_the_case() -> None:
    died = Workers(5, b5=(Ended.DIED, "", "rank 1: worker ended by signal 9 (SIGKILL)"))
    outcome = died.all_tries(unseeded())
    fits, failed = bracket_of(outcome.own.detail[TRIES])
    assert failed and (fits, failed["batch"], failed["ended"]) == (4, 5, "died")
    assert "SIGKILL" in failed["reason"]
    wrong = Workers(5, b4=(Ended.ERROR, "", "rank 0: ValueError: bad"))
    outcome = wrong.all_tries(unseeded())
    assert outcome.verdict.status == "failed" and wrong.tried == [1, 2, 4]
    assert "try 3" in outcome.verdict.reason and "ValueError: bad" in outcome.verdict.reason


def test_where_none_fits_the_case_failed_and_where_it_is_stopped_it_was_not_run() -> None:
    outcome = Workers(0).all_tries(unseeded())
    assert outcome.verdict.status == "failed"
    assert "none of 1 tries was ok" in outcome.verdict.reason
    stopped = Workers(5, b2=(Ended.OK, "SIGTERM", ""))
    assert stopped.all_tries(unseeded()).verdict == Verdict("not_run", "stopped by SIGTERM", -1)
    assert stopped.tried == [1, 2]


def searched(case: Case, *batches: tuple[int, str], limit: int = LIMIT) -> CaseResult:
    tries = [{"batch": batch, "ended": ended, "reason": "", "seconds": 1.0}
             for batch, ended in batches]
    capacity = {"bytes": limit, "of": "as the sweep gives it"}
    return ok(case, 1e-3, detail={
        "0": {"held": HELD_IN_TRIES, "capacity": capacity, TRIES: tries},
        "1": {"held": HELD_IN_TRIES, "capacity": {**capacity, "bytes": limit + 1}}})


def test_what_was_found_stands_beside_what_was_predicted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str],
) -> None:
    case = case_of()
    item = searched(case, (40, "out of memory"), (30, "ok"), (32, "died"), (31, "ok"))
    values = MemoryDeriver().derive([item], {})[case.case_id]
    assert [values[name] for name in (
        "largest_batch", "too_large_batch", "too_large_ended", "tries", "limit_bytes")] == [
        31, 32, "died", 4, LIMIT]
    expected = predicted_largest(work_of(case).training, 1, LIMIT)
    assert expected and values["predicted_largest_batch"] == expected
    assert values["batch_deviation"] == 31 / expected - 1
    assert values["predicted_peak_bytes"] == predicted(with_batch(work_of(case).training, 31))
    batch_size = next(one for one in MemoryDeriver.columns if one.name == "batch_size")
    assert batch_size.value(item, values) == 31
    write_summary(make_results((item,)), tmp_path)
    row, = json.loads((tmp_path / "summary.json").read_text("utf-8"))["results"]["memory"]
    assert (row["largest_batch"], row["too_large_batch"], row["tries"]) == (31, 32, 4)
    print_plan(make_plan(check_config({"benchmarks": [SEARCH]}, "c.json"), 2))
    print_results(make_results((item,)), tmp_path, explain=True)
    text = capsys.readouterr().out
    for words in ("largest batch", "too large", "the limit is as the sweep gives it",
                  "what is tried first", "each try has new workers"):
        assert words in text, words


def test_of_other_cases_and_without_the_tries_nothing_was_found() -> None:
    untried = case_of()
    assert not MemoryDeriver().derive([searched(untried)], {})[untried.case_id]
    case = case_of(largest_batch=None, memory_limit=None)
    assert "largest_batch" not in MemoryDeriver().derive([searched(case)], {})[case.case_id]
    assert case.workload.next_try(()) is None
    tried, _ = case_of().workload.next_try(()) or (None, {})
    assert isinstance(tried, MemoryWork) and tried.next_try(()) is None
    assert f"batch={tried.training.batch_size} " in " ".join(tried.label(2).words)

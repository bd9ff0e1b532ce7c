"""Numbers of trainings: efficiency, scaling, bubbles, who comes late; by hand and by laws."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from hpcbench.kinds.training.derive.rates import scaling
from hpcbench.kinds.training.derive.slow_ranks import (
    BACKWARD,
    FORWARD,
    Op,
    OwnSteps,
    bubble_share,
    order,
    replay,
)
from hpcbench.kinds.training.derive.stalls import (
    STAMPS,
    WITHOUT,
    Times,
    Useful,
    beside_base,
    from_partner,
    from_stamps,
    of_steps_that_meet,
    of_two_factors,
)
from hpcbench.kinds.training.plan.spec import SCHEDULES, schedule_of, stages_on, unscheduled
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.kinds.training.present.tables import efficiencies, overviews
from hpcbench.reduce.metric import Values
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, CaseSamples, Steps
from hpcbench.reduce.results_file import open_results
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from hpcbench.statistics.overlap import OverPasses
from hpcbench.trace.schema import ARRIVAL, NO_DEVICE_TIME, Record
from hpcbench.views.table import Table
from results_factory import make_results, not_ok
from synthetic import plan_of, with_rows, write_synthetic_run
from training_cases import make_training, make_training_case
from training_results import trained, training_case

MS = 1_000_000
CASE = make_training_case(make_training(dp=2), world_size=2)


def stamps(ready_ms: list[int], optimizer_ms: int, step_ms: int, steps: int = 6) -> CaseSamples:
    """Return steps of ranks that meet once, each from the same moment on."""
    ranks = len(ready_ms)
    shape = (ranks, steps)
    start = np.broadcast_to(np.arange(steps) * 100 * MS, shape).astype(np.int64)
    ready = np.broadcast_to(np.array(ready_ms)[:, None] * MS, shape).astype(np.int64)
    after = np.full(shape, optimizer_ms * MS, np.int64)
    none, pass_index = np.full(shape, NO_DEVICE_TIME, np.int64), np.arange(steps) // (steps // 3)
    return CaseSamples(
        tuple(range(ranks)), np.zeros(steps, np.int64), pass_index, start, start + step_ms * MS,
        none, none, np.zeros(shape, np.int64),
        {"forward": ready // 3, "backward": ready - ready // 3,
         "exchange": step_ms * MS - ready - after, "optimizer": after, f"{ARRIVAL}1": ready})


def test_stamps_give_all_factors() -> None:
    found = from_stamps(trained(CASE, 0.01), stamps([6, 4], 3, 10))
    assert found["efficiency_of"] == STAMPS
    assert found["useful"].seconds == pytest.approx((0.009, 0.007))
    assert [found[name] for name in ("load_balance", "serialisation", "transfer")] == (
        pytest.approx([8 / 9, 1, 0.9]))
    assert found["efficiency_score"] == found["useful"].parallel == pytest.approx(0.8)
    assert found["efficiency_limit"] is None


@pytest.mark.parametrize("change", [{"tp": 2, "dp": 1}, {"calls": ("all_reduce", "broadcast")}])
def test_stamps_that_hold_waiting_give_nothing(change: dict[str, object]) -> None:
    """Ranks of tensor parallelism wait within forward; those of zero1 in the optimizer."""
    work = make_training(**{"dp": 2, **change})
    assert from_stamps(trained(make_training_case(work, world_size=2), 0.01),
                       stamps([6, 4], 2, 10)) == {}
    blocking = replace(CASE, backend="mpi")
    assert from_stamps(trained(blocking, 0.01), stamps([6, 4], 2, 10)) == {}


def test_one_rank_is_useful_all_the_time() -> None:
    alone = make_training_case(make_training(dp=1, strategy="single"), world_size=1)
    found = from_stamps(trained(alone, 0.01), stamps([8], 2, 10))
    assert (found["efficiency_score"], found["useful"].seconds) == (1, pytest.approx((0.01,)))


def over(seconds: float) -> OverPasses:
    return OverPasses(seconds, seconds, seconds, 3)


def test_steps_without_communication_give_two_factors() -> None:
    found = from_partner(trained(CASE, 0.01), OwnSteps(own_s=(over(0.006), over(0.003))))
    assert [found[name] for name in (
        "efficiency_score", "load_balance", "communication_efficiency")] == (
        pytest.approx([0.45, 0.75, 0.6]))
    assert (found["efficiency_of"], found["transfer"], found["efficiency_limit"]) == (
        WITHOUT, None, "communication_efficiency")
    assert from_partner(trained(CASE, 0.01), OwnSteps()) == {}


def test_times_that_contradict_have_no_score_and_show_no_factor() -> None:
    found = from_partner(trained(CASE, 0.01), OwnSteps(own_s=(over(0.02), over(0.02))))
    assert found["efficiency_score"] is None and found["useful"].parallel == pytest.approx(2)
    (row,) = table_of([trained(CASE, 0.01)], found).rows
    assert [row.cells[at] for at in (2, 3, 4)] == [None, 1, None]


def table_of(items: Sequence[CaseResult], values: Values) -> Table:
    (table,) = efficiencies(items, {item.case.case_id: values for item in items})
    return table


@pytest.mark.parametrize(("kind", "own", "factor"), [
    ("weak", (0.01, 0.01), 1.0), ("weak", (0.02, 0.02), 0.5), ("strong", (0.005, 0.005), 1.0),
    ("strong", (0.01, 0.01), 0.5)])
def test_computation_scaling(kind: str, own: tuple[float, ...], factor: float) -> None:
    base = {"useful": Useful(STAMPS, (0.01,), 1.0)}
    here = {"useful": Useful(STAMPS, own, 0.5), "scaling": kind, "scaling_base_ranks": 1}
    found = beside_base(here, base)
    assert found["computation_scaling"] == pytest.approx(factor)
    assert found["global_efficiency"] == pytest.approx(factor / 2)
    other = {"useful": Useful(WITHOUT, (0.01,), 1.0)}
    assert beside_base({**here, "scaling_base_ranks": 2}, other) == {}
    assert beside_base(here, {}) == {}


def test_the_table_has_the_trainings_of_several_ranks() -> None:
    item = trained(CASE, 0.01)
    values = from_stamps(item, stamps([8, 2], 0, 10))
    table = table_of([item], values)
    (row,) = table.rows
    shown = dict(zip((column.title for column in table.columns), row.cells, strict=True))
    assert (shown["score"], shown["limits"], shown["by"]) == (
        pytest.approx(0.5), "load balance", STAMPS)
    assert values["load_balance"] == pytest.approx(10 / 16)
    assert list(efficiencies([item], {})) == []


def test_trainings_that_differ_in_their_optimizer_have_two_names() -> None:
    both = [trained(make_training_case(replace(make_training(dp=2), optimizer=name), world_size=2),
                    0.01) for name in ("sgd", "adamw")]
    table = table_of(both, from_stamps(both[0], stamps([8, 2], 0, 10)))
    assert [str(row.cells[0]).split()[-1] for row in table.rows] == ["sgd", "adamw"]


Capture = pytest.CaptureFixture[str]


def timed(median_s: float, strategy: str = "data", index: int = 0, **changes: Any) -> CaseResult:
    return trained(training_case(strategy, index=index, **changes), median_s)


def weak() -> list[CaseResult]:
    """4 samples of a rank: in 8 ms alone, in 10 ms on two ranks, in 16 ms on four."""
    return [timed(8e-3, "single", 0, dp=1), timed(10e-3, "data", 1, dp=2),
            timed(16e-3, "data", 2, dp=4), timed(20e-3, "fsdp", 3, dp=4)]


def shares(items: list[CaseResult]) -> dict[tuple[str, int], tuple[str, float]]:
    found = scaling(items)
    return {(training_of(case).strategy, case.world_size): (
        found[case.case_id]["scaling"], found[case.case_id]["scaling_efficiency"])
        for case in (item.case for item in items) if case.case_id in found}


def test_weak_scaling_by_hand() -> None:
    assert shares(weak()) == {("data", 2): ("weak", pytest.approx(0.8)),
                              ("data", 4): ("weak", pytest.approx(0.5)),
                              ("fsdp", 4): ("weak", pytest.approx(0.4))}


def test_the_same_training_of_other_iterations_has_a_row_of_its_own() -> None:
    items = weak()
    twin = replace(items[1], case=replace(items[1].case, case_id="twin", marks="iterations=9"))
    items = [*items, twin]
    (table,) = overviews(items, scaling(items))
    assert [row.cells[0] for row in table.rows].count("data") == 2
    assert [row.case_id for row in table.rows if "iterations=9" in row.cells] == ["twin"]


def test_a_strategy_on_one_rank_is_its_own_base() -> None:
    found = shares([*weak(), timed(12.8e-3, "data", 4, dp=1)])
    assert found["data", 4] == ("weak", pytest.approx(0.8))
    assert found["fsdp", 4] == ("weak", pytest.approx(0.4))


def test_without_one_rank_the_fewest_are_the_base() -> None:
    assert shares(weak()[1:]) == {("data", 4): ("weak", pytest.approx(0.625))}


def test_ranks_that_share_a_replica_scale_strongly() -> None:
    found = shares([weak()[0], timed(2e-3, "tensor", 1, dp=1, tp=4),
                    timed(4e-3, "hybrid", 2, dp=2, tp=2)])
    assert found == {("tensor", 4): ("strong", pytest.approx(1.0))}
    more_a_rank = [timed(4e-3, "hybrid", 0, dp=1, tp=4), timed(4e-3, "hybrid", 1, dp=4, tp=2)]
    assert shares(more_a_rank) == {}


def test_the_base_of_a_strategy_without_a_chunked_loss_may_have_one() -> None:
    chunked, *others = (timed(8e-3, "single", 0, dp=1, loss="chunked_cross_entropy"),
                        timed(2e-3, "tensor", 1, dp=1, tp=4))
    assert shares([chunked, *others]) == {("tensor", 4): ("strong", pytest.approx(1.0))}
    nearer = timed(4e-3, "single", 2, dp=1)
    assert shares([chunked, nearer, *others]) == {("tensor", 4): ("strong", pytest.approx(0.5))}


def test_adapters_are_compared_with_the_same_over_single(
    tmp_path: Path, capsys: Capture,
) -> None:
    def adapted(median_s: float, index: int, over: str, dp: int, rank: int = 16) -> CaseResult:
        options = (("alpha", 32), *((("bucket_mb", 25),) if over == "data" else ()),
                   ("over", over), ("rank", rank), ("targets", "all"))
        return timed(median_s, "lora", index, dp=dp, options=options, adapters=9_216)

    items = [weak()[0], adapted(8e-3, 1, "single", 1), adapted(10e-3, 2, "data", 2),
             adapted(16e-3, 3, "fsdp", 4), adapted(16e-3, 4, "data", 4, rank=8)]
    ids = [item.case.case_id for item in items]
    found = {ids.index(case_id): (
        ids.index(scaled["scaling_base_case"]), scaled["scaling_efficiency"])
        for case_id, scaled in scaling(items).items()}
    assert found == {2: (1, pytest.approx(0.8)), 3: (1, pytest.approx(0.5))}
    print_results(make_results(tuple(items)), tmp_path)
    assert capsys.readouterr().out.count("over=single, 1 rank ") == 2
    doubtful = OverPasses(0.0, -1.0, 1.0, 3, tells=False)
    (table,) = efficiencies(items, {ids[3]: {
        "efficiency_of": WITHOUT, "exposed_s_passes": doubtful}})
    assert "over=fsdp" in str(table.rows[0].cells[0])
    assert len(table.notes) == 1 and "over=fsdp" in table.notes[0].text


def test_an_efficiency_of_unreliable_medians_is_named(tmp_path: Path, capsys: Capture) -> None:
    base, two, four, other = weak()
    assert two.statistics is not None
    unsure = replace(two, statistics=replace(two.statistics, ci_reliable=False))
    items = (base, unsure, four, other)
    print_results(make_results(items), tmp_path)
    assert [line for line in capsys.readouterr().out.splitlines() if "? data n=2: " in line]
    rated = {item.case.case_id: {
        "efficiency_of": STAMPS, "scaling_base_case": base.case.case_id, "global_efficiency": 1.07}
        for item in (unsure, four)}
    (table,) = efficiencies(items, rated)
    assert [note.text.count("global") for note in table.notes] == [1]
    assert str(table.rows[0].cells[0]) in table.notes[0].text
    assert [*efficiencies((base, two, four), rated)][0].notes == ()


@pytest.mark.parametrize("change", [
    {"batch_size": 8}, {"dtype": "bf16"}, {"layers": 4}, {"optimizer": "sgd"},
    {"case": {"backend": "mpi"}}, {"case": {"env": (("A", "1"),)}}])
def test_other_trainings_are_no_base(change: dict[str, Any]) -> None:
    assert shares([timed(8e-3, "single", 0, dp=1, **change), timed(8e-3, "data", 1, dp=2)]) == {}


def test_a_base_that_failed_is_none(tmp_path: Path, capsys: Capture) -> None:
    failed = not_ok(training_case("single", dp=1), "failed", "no memory")
    items = [failed, timed(10e-3, "data", 1, dp=2)]
    assert shares(items) == {}
    print_results(make_results(tuple(items)), tmp_path)
    assert "scaling efficiency of trainings" not in capsys.readouterr().out


def test_the_table_names_base_and_definition(tmp_path: Path, capsys: Capture) -> None:
    mixed = [replace(item, case=replace(item.case, case_id=f"{item.case.case_id}b"))
             for item in (timed(4e-3, "single", 4, dp=1, dtype="bf16"),
                          timed(5e-3, "data", 5, dp=2, dtype="bf16"))]
    print_results(make_results((*weak(), *mixed)), tmp_path, explain=True)
    lines = capsys.readouterr().out.splitlines()
    assert any(line.startswith("scaling efficiency = samples/s of n ranks / (n / m x samples/s")
               for line in lines)
    table = lines[lines.index("scaling efficiency of trainings"):]
    assert table[1].split() == ["strategy", "setting", "batch", "scaling", "base", "base", "n=2",
                                "n=4"]
    rows = [line.split() for line in table if line.startswith(("data", "fsdp"))]
    assert rows == [
        ["data", "dtype=fp32", "4", "weak", "single,", "1", "rank", "500.00", "80.0", "50.0"],
        ["fsdp", "dtype=fp32", "4", "weak", "single,", "1", "rank", "500.00", "-", "40.0"],
        ["data", "dtype=bf16", "4", "weak", "single,", "1", "rank", "1000.0", "80.0", "-"]]


def test_the_summary_has_it(tmp_path: Path) -> None:
    items = weak()
    write_summary(make_results(tuple(items)), tmp_path)
    document = json.loads((tmp_path / "summary.json").read_text())
    base, row, *_ = document["cases"]
    assert base["scaling"] is base["scaling_efficiency"] is base["scaling_base_case"] is None
    assert (row["scaling"], row["scaling_base_case"], row["scaling_base_ranks"]) == (
        "weak", items[0].case.case_id, 1)
    assert row["scaling_efficiency"] == pytest.approx(0.8)
    assert row["scaling_base_samples_per_second"] == pytest.approx(500)
    assert document["results"]["training"]["data"][0]["scaling_efficiency"] == pytest.approx(0.8)


def test_samples_of_each_strategy_and_predicted_memory_are_printed(
    tmp_path: Path, capsys: Capture,
) -> None:
    print_results(make_results(tuple(weak())), tmp_path)
    lines = capsys.readouterr().out.splitlines()
    (summary,) = (line for line in lines if line.startswith("  training "))
    assert "data" in summary and "single 500" in summary
    assert any("planned" in line for line in lines)


seconds = st.floats(1e-6, 1e3)


def test_by_hand() -> None:
    """Ranks compute 6 + 2 s and 4 + 2 s of a step of 10 s: on an ideal network it takes 8 s."""
    found = of_steps_that_meet(
        np.array([[6.0], [4.0]]), np.array([[2.0], [2.0]]), np.array([10.0]))
    assert found
    assert found.load_balance == pytest.approx(7 / 8)
    assert found.serialisation == pytest.approx(1)
    assert found.transfer == pytest.approx(0.8)
    assert found.communication == pytest.approx(0.8)
    assert found.parallel == pytest.approx(0.7)


def test_ranks_that_are_slow_in_turn_are_balanced_and_serialised() -> None:
    """Each rank computes 3 s in all, but in each step the other waits for it for 1 s."""
    found = of_steps_that_meet(np.array([[2.0, 1.0], [1.0, 2.0]]), np.zeros((2, 2)),
                               np.array([2.0, 2.0]))
    assert found
    assert (found.load_balance, found.transfer) == (1, 1)
    assert found.serialisation == found.parallel == pytest.approx(0.75)


def test_a_late_begin_is_serialised_and_no_step_is_longer_than_it_was() -> None:
    """The second rank begins 3 s late and is ready after 7 s; the medians of late begins may be
    longer than a step."""
    times = np.array([[4.0], [4.0]]), np.zeros((2, 1)), np.array([8.0])
    found = of_steps_that_meet(*times, np.array([[0.0], [3.0]]))
    assert found
    assert (found.serialisation, found.transfer) == pytest.approx((4 / 7, 7 / 8))
    found = of_steps_that_meet(*times, np.array([[0.0], [9.0]]))
    assert found
    assert (found.serialisation, found.transfer) == pytest.approx((0.5, 1))


def test_without_stamps_there_are_two_factors() -> None:
    found = of_two_factors([3.0, 1.0], 4.0)
    assert found
    assert (found.parallel, found.load_balance, found.communication) == pytest.approx(
        (0.5, 2 / 3, 0.75))
    assert found.serialisation is found.transfer is None


@pytest.mark.parametrize(("useful", "elapsed"), [([], 1.0), ([0.0, 0.0], 1.0), ([1.0], 0.0)])
def test_of_no_time_there_is_nothing(useful: list[float], elapsed: float) -> None:
    assert of_two_factors(useful, elapsed) is None


@given(arrays(float, (3, 4), elements=seconds), arrays(float, (3, 4), elements=seconds),
       arrays(float, (4,), elements=seconds))
def test_factors_multiply_and_are_shares(before: Times, after: Times, waiting: Times) -> None:
    """Whatever the times: a step is at least as long as on an ideal network."""
    step_s = before.max(axis=0) + after.max(axis=0) + waiting
    found = of_steps_that_meet(before, after, step_s)
    assert found and found.serialisation and found.transfer
    assert found.serialisation * found.transfer == pytest.approx(found.communication)
    assert found.load_balance * found.communication == pytest.approx(found.parallel)
    for share in (found.load_balance, found.serialisation, found.transfer, found.parallel):
        assert 0 < share <= 1 + 1e-12
    assert found.load_balance >= 1 / 3 - 1e-12


WHOLE_BACKWARDS = ("GPipe", "1F1B", "Interleaved1F1B", "LoopedBFS")
PIPELINES = [(schedule.name, p, v, m) for schedule in SCHEDULES for p in (1, 2, 3, 4, 8)
             for v in (1, 2, 3) for m in (p, 2 * p, 4 * p)
             if unscheduled(schedule, p, v, m) is None]


@pytest.mark.parametrize(("name", "p", "v", "m"), PIPELINES)
def test_bubbles_are_those_of_the_closed_forms(name: str, p: int, v: int, m: int) -> None:
    """Zero-bubble schedules have work of 3 units per stage, of which nobody waits for 1.

    DualPipeV would wait as little, but torch holds back what forwards of pairs return.
    """
    units = v * m if name in WHOLE_BACKWARDS else 3 * v * m
    waits = 2 * (p - 1) if name == "DualPipeV" else p - 1
    found = bubble_share(name, p, m, v)
    if m >= 2 * p or name in WHOLE_BACKWARDS:
        assert found == pytest.approx(waits / (units + waits)), (name, p, v, m)
    assert 0 <= found < 1


def test_one_micro_batch_keeps_one_rank_busy() -> None:
    assert bubble_share("GPipe", 4, 1) == pytest.approx(3 / 4)


def test_a_schedule_that_waits_less_is_distinguished() -> None:
    shares = [bubble_share(name, 4, 16, v) for name, v in (
        ("1F1B", 1), ("Interleaved1F1B", 2), ("Interleaved1F1B", 4), ("ZBVZeroBubble", 2))]
    assert shares == sorted(shares, reverse=True) and len(set(shares)) == 4


@pytest.mark.parametrize(("name", "p", "v", "m"), PIPELINES)
def test_every_stage_does_every_micro_batch_once(name: str, p: int, v: int, m: int) -> None:
    ops = [op for rank in range(p) for op in order(name, p, m, v, rank)]
    assert len(set(ops)) == len(ops)
    cells = {(stage, number) for stage in range(p * v) for number in range(m)}
    whole = {op[1:3] for op in ops if op.kind == BACKWARD}
    halves = [{op[1:3] for op in ops if op.kind == kind} for kind in "IW"]
    assert {op[1:3] for op in ops if op.kind == FORWARD} == cells
    assert halves[0] == halves[1] == cells - whole
    for rank in range(p):
        own = {op.stage for op in order(name, p, m, v, rank)}
        assert own == set(stages_on(schedule_of(name), p, rank, v))


def test_ranks_that_wait_for_each_other_are_reported() -> None:
    forwards = [[Op(FORWARD, 0, 0)], [Op(FORWARD, 1, 1)]]
    with pytest.raises(ValueError, match="no rank can go on"):
        replay(forwards, 2)


@pytest.mark.parametrize(("name", "ranks", "stages", "microbatches", "reason"), [
    ("1F1B", 4, 1, 3, "as many micro-batches as stages: 3 micro-batches are fewer than 4 stages"),
    ("1F1B", 4, 2, 8, "stages per rank: 1F1B has 1, not 2"),
    ("DualPipeV", 2, 2, 3, "fewer than 4 stages"),
    ("ZBVZeroBubble", 2, 3, 4, "stages per rank: ZBVZeroBubble has 2, not 3"),
    ("LoopedBFS", 2, 1, 4, "LoopedBFS needs 2 stages per rank, not 1"),
    ("Interleaved1F1B", 2, 2, 5, "5 cannot be divided evenly into 2 rounds"),
])
def test_what_a_schedule_cannot_do_has_a_reason(
    name: str, ranks: int, stages: int, microbatches: int, reason: str,
) -> None:
    assert reason in str(unscheduled(schedule_of(name), ranks, stages, microbatches))


CASE_OF_THREE = make_training_case(make_training(dp=3), world_size=3)
BEFORE_NS = 200
"""The last bucket is ready so long before the end of the step."""


def reduced(folder: Path, change: Callable[[int, Record], Record]) -> CaseResult:
    write_synthetic_run(folder, plan_of([CASE_OF_THREE], 3, passes=2),
                        change=lambda rank, record: (change(rank, record),))
    return reduce_folder(folder).cases[0]


def with_buckets(rank: int, record: Record) -> Record:
    """Return a record whose rank 2 begins its steps late by 150 ns; all others are as they were."""
    rows = record.samples.rows()
    rows[:, 0] += 150 * (rank == 2)
    step = rows[:, 1] - rows[:, 0]
    return replace(with_rows(record, rows), phases={
        "backward": step - BEFORE_NS, "exchange": np.full(len(step), BEFORE_NS),
        f"{ARRIVAL}1": step // 2, f"{ARRIVAL}7": step - BEFORE_NS + 20 * (rank == 2)})


def steps_of(item: CaseResult) -> Steps:
    assert item.timing is not None and item.timing.steps is not None, item.reason
    return item.timing.steps


def test_arrivals_count_from_the_first_rank_s_begin(tmp_path: Path) -> None:
    item = reduced(tmp_path, with_buckets)
    steps = steps_of(item)
    assert [phase.name for phase in steps.phases] == ["backward", "exchange"]
    assert steps.other_share == 0  # arrivals are no durations
    first, last = steps.arrivals
    assert (first.bucket, last.bucket) == (1, 7)
    with open_results(tmp_path) as file:
        assert file.results.cases[0] == item
        samples = file.samples(CASE_OF_THREE.case_id)
    timed = np.flatnonzero((samples.flags[0] & 1) == 0)
    late_ns = samples.start_ns - samples.start_ns.min(axis=0)
    arrived_ns = (late_ns + samples.phases[f"{ARRIVAL}7"])[:, timed]
    votes = (arrived_ns == arrived_ns.max(axis=0)).mean(axis=1)
    assert last.last_rank == int(np.argmax(votes))
    assert last.last_share == pytest.approx(votes.max(), abs=0.1)
    assert last.behind_s > 0
    assert all(early <= late for early, late in zip(first.median_s, last.median_s, strict=True))


def test_the_steps_of_each_pass_are_recorded(tmp_path: Path) -> None:
    steps = steps_of(reduced(tmp_path, with_buckets))
    assert len(steps.pass_step_s) == 2
    for times in steps.pass_step_s:
        assert times is not None and times == pytest.approx(steps.step_s, rel=0.5)

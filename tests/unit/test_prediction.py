"""Predictions for other numbers of ranks: laws, intervals, refusals, and the command."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bad_input_process import hpcbench
from hpcbench.answers.answer import CLEAR, Run, TopicOptions
from hpcbench.config.load import check_config, load_config, read_config
from hpcbench.errors import UsageError
from hpcbench.gen_config import Sweep
from hpcbench.operations.traffic import CallGroup, Signature, TrafficRecord
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.prediction import present
from hpcbench.prediction.charts import MOST_CASES, charts, ranks_along
from hpcbench.prediction.commands.predict import numbers_of_ranks
from hpcbench.prediction.laws import ALGORITHMS, CallLaw, Points
from hpcbench.prediction.measured import planned_fact
from hpcbench.prediction.predict import (
    Predicted,
    Predictions,
    next_sweep,
    predict,
    predict_recorded,
    sweeps_of,
)
from hpcbench.prediction.recorded import recorded_demands
from hpcbench.prediction.sweeps import next_ranks, sweep_for
from hpcbench.prediction.topic import TOPIC
from hpcbench.reduce.kind_facts import StepDemand
from hpcbench.reduce.results_file import new_results
from hpcbench.report.plots import draw
from hpcbench.views.chart import BarChart, LineChart
from results_factory import MemorySamples, make_results, make_statistics, ok

SIZES = [2**14, 2**16, 2**18, 2**20, 2**22]
SWEEP: dict[str, Any] = {
    "benchmarks": [
        {"kind": "collective", "collective": ["all_reduce", "all_gather", "reduce_scatter"],
         "backend": "gloo", "size": SIZES, "device": "cpu"},
        {"kind": "training", "model": "transformer-tiny", "seq_length": 32, "batch_size": 1,
         "backend": "gloo", "device": "cpu", "strategies": {"single": {}, "data": {}, "fsdp": {}}}]}
STEP_S, BYTE_S, FLOP_S = 2e-4, 1e-9, 1e-10
Clock = Callable[[Case], float]


def ring_s(ranks: int, size: float) -> float:
    """The time of a collective by a ring."""
    return STEP_S * (ranks - 1) + BYTE_S * size * (ranks - 1) / ranks


def true_s(case: Case) -> float:
    """The true time of a case: computing, and its calls one after another."""
    demand = planned_fact(case, StepDemand)
    assert demand is not None
    return 1e-6 + FLOP_S * demand.flops + sum(
        call.number * ring_s(call.ranks, call.size_bytes) for call in demand.calls)


def measured(
    ranks: int, clock: Clock = true_s, sweep: dict[str, Any] = SWEEP, nodes: int | None = None,
) -> Run:
    """A run of the sweep on so many ranks, each on a node of its own unless told otherwise, whose
    medians a clock gives."""
    plan = make_plan(check_config(sweep, "sweep.json"), ranks)
    items = tuple(replace(ok(case, clock(case)), device="cpu",
                          statistics=make_statistics(clock(case), spread=0.002))
                  for case in plan.cases if not case.skip)
    results = make_results(items, world_size=ranks, ranks_present=tuple(range(ranks)), nodes=tuple(
        f"node{at}" for at in range(ranks if nodes is None else nodes)))
    results = replace(results, plan=replace(results.plan, config=plan.config, world_size=ranks))
    return Run(f"on{ranks}", results, MemorySamples(results))


def on(*ranks: int, **how: Any) -> list[Run]:
    return [measured(n, **how) for n in ranks]


def predicted(
    runs: list[Run], ranks: list[int], only: Sequence[str] = (), names: Any = None, **how: Any,
) -> Predictions:
    return predict(sweeps_of(runs, names or {}), runs, ranks, only, **how)


def recorded(collective: str, size: int, group: int, count: int) -> Signature:
    return Signature(collective, "fp32", None, None, (size // 4,), (size // 4,), None, None, group,
                     count, size, "gloo")


def named(cases: Sequence[Predicted], *words: str) -> Predicted:
    (found,) = [one for one in cases if all(word in one.label.split() for word in words)]
    return found


def values(one: Predicted) -> tuple[float, float, float]:
    assert one.step is not None, one.refused
    return one.step.time.value, *one.step.time.ends


def test_a_true_law_is_found_for_collectives_and_steps() -> None:
    found = predicted(on(1, 2, 4, 8), [64])
    assert found.left_out == {}
    for one in found.cases:
        value, low, high = values(one)
        assert value == pytest.approx(true_s(one.case), rel=0.02)
        assert low < value < high < 1.5 * value
        assert one.step.beyond[0] == "ranks"
    step = named(found.cases, "data")
    assert {part.name for part in step.step.terms} == {"computing", "all_reduce"}
    assert sum(part.seconds for part in step.step.terms) == pytest.approx(values(step)[0])
    assert 0 < step.efficiency.value < 1
    assert step.tokens_per_second.value == pytest.approx(64 * 32 / values(step)[0])


@settings(max_examples=20, deadline=None)
@given(st.sampled_from(sorted(set(ALGORITHMS) - {"barrier"})), st.integers(0, 3),
       st.integers(0, 2**32 - 1))
def test_the_interval_holds_what_was_left_out(collective: str, which: int, seed: int) -> None:
    """With 2 % of noise in each median; a tenth may miss it, and each is near."""
    algorithm = ALGORITHMS[collective][which % len(ALGORITHMS[collective])]
    random = np.random.default_rng(seed)
    rows = [(n, size, 1e-5 + 1e-4 * algorithm.steps(n) + 1e-9 * algorithm.share(n) * size)
            for n in (2, 3, 4, 6, 8, 12, 16) for size in SIZES]
    n, size, true = np.array(rows, float).T
    points = Points(n, size, true * np.exp(0.02 * random.standard_normal(len(true))),
                    np.full(len(true), 0.02))
    rest = CallLaw(collective, points.where(points.ranks != 8))
    times = [rest.predict(8, one) for one in SIZES]
    own = points.where(points.ranks == 8).times_s
    errors = [abs(one.time.value / time - 1) for one, time in zip(times, own, strict=True)]
    assert float(np.median(errors)) < 0.1
    assert sum(one.time.holds(time) for one, time in zip(times, own, strict=True)) >= 3


def test_an_algorithm_that_changes_with_the_size_has_two_ranges() -> None:
    rows = [(n, size, 1e-4 * np.ceil(np.log2(n)) if size < 2**17 else ring_s(n, size))
            for n in (2, 4, 8, 16) for size in [2**12, *SIZES]]
    n, size, times = np.array(rows, float).T
    law = CallLaw("all_reduce", Points(n, size, times, np.full(len(times), 0.01)))
    assert [2**16 < one.below <= 2**18 for one in law.fit.ranges[:-1]] == [True]
    assert law.fit.ranges[-1].algorithm.name == "ring"
    assert law.predict(32, 2**22).time.value == pytest.approx(ring_s(32, 2**22), rel=0.02)


def test_few_ranks_may_have_a_law_of_their_own() -> None:
    rows = [(n, size, ring_s(n, size) * (1.6 if n == 2 else 1)) for n in (2, 3, 4, 6, 8)
            for size in SIZES]
    n, size, times = np.array(rows, float).T
    law = CallLaw("all_gather", Points(n, size, times, np.full(len(times), 0.01)))
    for ranks, true in ((2, 1.6 * ring_s(2, 2**22)), (16, ring_s(16, 2**22))):
        assert law.predict(ranks, 2**22).time.value == pytest.approx(true, rel=0.02)


@pytest.mark.parametrize(("most", "one_way"), [(6, False), (16, True)])
def test_algorithms_that_cannot_be_told_apart_are_in_the_interval(most: int, one_way: bool) -> None:
    """On 2 to 6 ranks one message after another takes as long as a tree whose ranks send to all
    their children at once; on 64, three times as long."""
    rows = [(n, size, 1e-8 * size * (n - 1)) for n in range(2, most + 1) for size in SIZES]
    n, size, times = np.array(rows, float).T
    law = CallLaw("broadcast", Points(n, size, times, np.full(len(times), 0.01)))
    time = law.predict(64, 2**20).time
    assert time.holds(63e-8 * 2**20)
    assert time.holds(21e-8 * 2**20) != one_way


@pytest.mark.parametrize(("ranks", "refused", "part"), [
    ((2, 4), "data", "numbers of them"), ((2, 4), "all_reduce", "numbers of them"),
    ((1, 2), "fsdp", "numbers of them")])
def test_too_few_numbers_of_ranks_are_refused(
    ranks: tuple[int, ...], refused: str, part: str,
) -> None:
    found = predicted(on(*ranks), [8])
    cases = [one for one in found.cases if refused in one.label.split()]
    assert cases
    for one in cases:
        assert one.step is None
        assert part in one.refused


def test_one_rank_sends_nothing() -> None:
    assert {one.refused for one in predicted(on(2, 4, 8), [1], ["all_reduce"]).cases} == {
        "one rank sends nothing"}


def test_what_was_not_measured_names_the_ranks_that_it_rests_on() -> None:
    other = {**SWEEP["benchmarks"][0], "collective": "all_reduce", "size": 2**17}
    training = {**SWEEP["benchmarks"][1], "layers": 8, "strategies": "data"}
    shapes = {"benchmarks": [SWEEP["benchmarks"][0], *({**training, "layers": count}
                                                       for count in (4, 16))]}
    for one in predict([check_config({"benchmarks": [other, training]}, "wanted")],
                       on(2, 4, 8, sweep=shapes), [16]).cases:
        assert one.measured_ranks == (2, 4, 8)


def test_fewer_ranks_than_measured_are_refused() -> None:
    found = predicted(on(3, 4, 6), [2]).cases
    assert found
    assert all("3 ranks and more" in one.refused for one in found)


def test_one_rank_alone_is_no_point_that_is_left_out() -> None:
    """Without it nothing tells how fast a rank computes where most of a step is exchange."""
    found = named(predicted(on(1, 2, 4, 8), [16]).cases, "data")
    value, low, high = values(found)
    assert high < 1.2 * value
    assert low > 0.8 * value


def test_a_number_of_ranks_that_was_measured_needs_no_law_over_ranks() -> None:
    found = predicted(on(4), [4], ["all_reduce"])
    assert len(found.cases) == len(SIZES)
    for one in found.cases:
        assert values(one)[0] == pytest.approx(true_s(one.case), rel=0.02)


def test_without_isolated_calls_a_step_is_refused_and_names_them() -> None:
    alone = {**SWEEP, "benchmarks": SWEEP["benchmarks"][1:]}
    found = predicted(on(1, 2, 4, 8, sweep=alone), [16])
    step = named(found.cases, "data")
    assert step.step is None
    assert "all_reduce of gloo" in step.refused


@pytest.mark.parametrize(("layers", "refused"), [(8, ""), (64, "outside of what was measured")])
def test_another_shape_is_predicted_between_measured_ones(layers: int, refused: str) -> None:
    shapes = {**SWEEP, "benchmarks": [SWEEP["benchmarks"][0], *(
        {**SWEEP["benchmarks"][1], "layers": count} for count in (4, 16))]}
    wanted = {"benchmarks": [{**SWEEP["benchmarks"][1], "layers": layers, "strategies": "data"}]}
    (found,) = predict([check_config(wanted, "wanted")], on(1, 2, 4, 8, sweep=shapes), [16]).cases
    if refused:
        assert refused in found.refused
    else:
        assert values(found)[0] == pytest.approx(true_s(found.case), rel=0.05)
        assert "shape" in found.step.beyond


def test_images_have_laws_of_their_own_and_routers_none() -> None:
    block = SWEEP["benchmarks"][1]
    images = {"kind": "training", "model": "resnet50", "batch_size": 1, "backend": "gloo",
              "device": "cpu", "strategies": "data"}
    routed = {**block, "model": "moe-tiny", "seq_length": 8, "strategies": {"moe": {
        "ep": 2, "load": "router"}}}
    sweep = {"benchmarks": [SWEEP["benchmarks"][0], images]}
    runs = on(1, 2, 4, 8, sweep=sweep)
    (found,) = predicted(runs, [16], ["resnet50"]).cases
    assert values(found)[0] == pytest.approx(true_s(found.case), rel=0.05)
    text = {"benchmarks": [{**block, "strategies": "data"}]}
    (found,) = predict([check_config(text, "text")], runs, [16]).cases
    assert "nothing that computes alike" in found.refused
    (found,) = predict([check_config({"benchmarks": [routed]}, "routed")], runs, [16]).cases
    assert "router" in found.refused


def test_another_strategy_in_place_of_that_of_the_files() -> None:
    found = predicted(on(1, 2, 4, 8), [16], names={"strategy": ["fsdp"]})
    trained = [one for one in found.cases if one.kind == "training"]
    assert trained
    assert all("fsdp" in one.label.split() for one in trained)


def test_recorded_calls_on_more_ranks() -> None:
    groups = (CallGroup("0", "", (0, 1, 2, 3)), CallGroup("1", "", (0, 1)))
    record = TrafficRecord(
        ("test",), ("t",), 4, (), groups, (
            recorded("all_reduce", 2**20, group=0, count=10),
            recorded("all_gather", 2**20, group=1, count=4),
            recorded("all_to_all", 2**20, group=0, count=3)), ())
    (found,) = predict_recorded(record, on(2, 4, 8), [32]).cases
    assert found.refused == "no isolated all_to_all of gloo was measured"
    record = replace(record, signatures=record.signatures[:2])
    whole = predict_recorded(record, on(2, 4, 8), [32])
    assert [note for note in whole.notes if "2.0 doublings" in note]
    (found,) = whole.cases
    assert values(found)[0] == pytest.approx(
        10 * ring_s(32, 2**20) + 4 * 2 / 4 * ring_s(2, 2**20), rel=0.02)


def test_each_way_of_a_collective_has_its_own_law() -> None:
    """bf16 takes ten times as long: neither is predicted by the other."""
    both = {"benchmarks": [{**SWEEP["benchmarks"][0], "dtype": ["fp32", "bf16"],
                            "collective": "all_reduce"}]}

    def slow(case: Case) -> float:
        return true_s(case) * (10 if case.workload.dtype == "bf16" else 1)

    for one in predicted(on(2, 4, 8, sweep=both, clock=slow), [16]).cases:
        assert one.case is not None
        assert values(one)[0] == pytest.approx(slow(one.case), rel=0.03)


def test_steps_without_computing_are_their_calls() -> None:
    only = {"benchmarks": [SWEEP["benchmarks"][0], {
        **SWEEP["benchmarks"][1], "communication": "only", "strategies": ["data", "fsdp"]}]}
    cases = [one for one in predicted(on(2, 4, 8, sweep=only), [16]).cases
             if one.kind == "training"]
    assert len(cases) == 2
    for one in cases:
        assert one.case is not None
        assert values(one)[0] == pytest.approx(true_s(one.case), rel=0.05)


def test_results_without_a_sweep_are_refused_and_leave_advice_alone() -> None:
    imported = [replace(run, results=replace(run.results, plan=replace(
        run.results.plan, config={}))) for run in on(2, 4, 8)]
    with pytest.raises(UsageError, match="--sweep"):
        sweeps_of(imported)
    assert TOPIC.analysis(imported, TopicOptions()).answers == ()


def test_recorded_calls_have_the_laws_of_their_backend() -> None:
    groups = (CallGroup("0", "", (0, 1, 2, 3)),)
    calls = [replace(recorded("all_reduce", 2**20, group=0, count=10), backend=name)
             for name in ("nccl", None)]
    record = TrafficRecord(("test",), ("t",), 4, (), groups, (calls[0],), ())
    (found,) = predict_recorded(record, on(2, 4, 8), [32]).cases
    assert found.refused == "no isolated call of nccl was measured"
    (found,) = predict_recorded(replace(record, signatures=(calls[1],)), on(2, 4, 8), [32]).cases
    assert values(found)[0] == pytest.approx(10 * ring_s(32, 2**20), rel=0.02)


def test_a_recorded_message_is_between_two() -> None:
    """10 messages of each neighbour of 4 ranks, in one group of all."""
    sends = tuple(replace(recorded("send_recv", 2**20, group=0, count=10), pair=(at, at + 1))
                  for at in range(3))
    record = TrafficRecord(
        ("test",), ("t",), 4, (), (CallGroup("0", "", (0, 1, 2, 3)),), sends, ())
    demands, left = recorded_demands(record, 64)
    assert not left
    (call,) = demands["gloo"].calls
    assert (call.ranks, call.stride, call.number) == (2, 1, 3 * 10 * 2 / 4)


def test_each_device_is_predicted() -> None:
    both = {"benchmarks": [{**SWEEP["benchmarks"][0], "device": ["cpu", "cuda"],
                            "collective": "all_reduce"}]}
    runs = [replace(run, results=replace(run.results, cases=tuple(
        replace(item, device=item.case.device) for item in run.results.cases)))
        for run in on(2, 4, 8, sweep=both)]
    found = predicted(runs, [16])
    assert len(found.cases) == 2 * len(SIZES)
    assert all(one.step for one in found.cases)


def test_steps_of_other_optimizers_do_not_speak_for_one() -> None:
    """SGD computes twice as fast here."""
    def clock(case: Case) -> float:
        faster = "sgd" in case.label.split()
        return true_s(case) - (FLOP_S / 2 * planned_fact(case, StepDemand).flops if faster else 0)

    block = {**SWEEP["benchmarks"][1], "strategies": "fsdp", "optimizer": ["adamw", "sgd"]}
    shapes = {"benchmarks": [SWEEP["benchmarks"][0], *(
        {**block, "layers": count} for count in (2, 8))]}
    wanted = check_config({"benchmarks": [{**block, "layers": 4}]}, "wanted")
    for one in predict([wanted], on(2, 4, 8, sweep=shapes, clock=clock), [16]).cases:
        assert one.case is not None
        assert values(one)[0] == pytest.approx(clock(one.case), rel=0.05)


@pytest.mark.parametrize("ranks", [1, 4096])
def test_ranks_without_a_case_are_refused_in_words(ranks: int) -> None:
    sweep = {"benchmarks": [{**SWEEP["benchmarks"][1], "strategies": {"hybrid": {"tp": 3}}}]}
    with pytest.raises(UsageError, match="no case to predict"):
        predict([check_config(sweep, "wanted")], on(2, 4, 8), [ranks])


@pytest.mark.parametrize(("strategies", "ranks", "code"), [
    ({"hybrid": {"tp": 4, "pp": 4}}, 64, 2), ({"hybrid": {"tp": 2}}, 64, 0), ("data", 3, 2),
    ({"hybrid": {"tp": 3, "pp": 5}}, 64, 2)])
def test_a_sweep_for_a_prediction_names_ranks_that_can_run_it(
    strategies: Any, ranks: int, code: int, tmp_path: Path,
) -> None:
    block = {**SWEEP["benchmarks"][1], "strategies": strategies}
    if code:
        with pytest.raises(UsageError):
            sweep_for(Sweep({"benchmarks": [block]}), ranks, ranks)
        return
    made = sweep_for(Sweep({"benchmarks": [block]}), ranks, ranks)
    counts = [int(line.split()[2]) for line in made.remarks if line.startswith("mpirun")]
    assert len(counts) == 3
    for count in counts:
        plan = make_plan(check_config(dict(made.content), "made"), count)
        assert not [case.skip for case in plan.cases if case.skip]


def test_a_sweep_for_this_machine_has_its_steps_alone_and_whole_nodes() -> None:
    made = sweep_for(Sweep(SWEEP, ranks=2), 64)
    training, *calls = made.content["benchmarks"]
    assert training["kind"] == "training"
    assert {block["collective"] for block in calls} == {
        "all_reduce", "all_gather", "reduce_scatter"}
    assert [int(line.split()[2]) for line in made.remarks if line.startswith("mpirun")] == [4, 6, 8]
    assert made.remarks[-1].endswith("--world-size 64 --ranks-per-node 2")


def test_what_no_law_describes_is_counted() -> None:
    odd = {**SWEEP, "benchmarks": [*SWEEP["benchmarks"], {
        "kind": "collective", "collective": "all_to_all", "backend": "gloo", "size": 2**20,
        "uneven": "linear", "device": "cpu"}]}
    found = predicted(on(2, 4, 8, sweep=odd, clock=lambda case: (
        true_s(case) if planned_fact(case, StepDemand) else 1e-3)), [16])
    assert sum(found.left_out.values()) == 3


@pytest.mark.parametrize(("ranks", "counts", "wanted"), [
    (64, [2, 4, 8], (32,)), (512, [2, 4, 8], (64,)), (16, [2, 4, 8], (16,)), (6, [2, 4, 8], (6,)),
    (64, [4], (8, 16)), (8, [4], (8,)), (1024, [2, 3, 4, 6, 8, 12, 16], (256,))])
def test_the_ranks_that_halve_an_interval(
    ranks: int, counts: list[int], wanted: tuple[int, ...],
) -> None:
    """Of Student's t of their number, times 1 + doublings; or the ranks themselves."""
    assert next_ranks(counts, ranks) == wanted


def test_the_sweep_to_run_next_halves_the_intervals(tmp_path: Path) -> None:
    random = np.random.default_rng(3)

    def noisy(case: Case) -> float:
        return true_s(case) * float(np.exp(0.03 * random.standard_normal()))

    runs = on(1, 2, 4, 8, clock=noisy)
    before = predicted(runs, [64], ["data"])
    made = next_sweep(sweeps_of(runs), before.cases)
    assert made.ranks == 32
    assert {block["kind"] for block in made.content["benchmarks"]} == {"training", "collective"}
    whole = {**made.content, "benchmarks": json.loads(json.dumps(made.content["benchmarks"]))}
    runs.append(measured(made.ranks, clock=noisy, sweep=whole))
    after = predicted(runs, [64], ["data"])
    widths = [np.log(one.step.time.ends[1] / one.step.time.ends[0])
              for found in (before, after) for one in found.cases if one.step]
    assert widths[1] < 0.7 * widths[0]


@pytest.mark.parametrize(("layers", "nodes", "counts"), [(8, 1, [4, 6, 8]), (4, 8, [2, 3, 4])])
def test_what_has_no_law_yet_is_run_on_three_numbers_of_ranks(
    layers: int, nodes: int, counts: list[int],
) -> None:
    """Calls between nodes after those in one; a shape between measured ones."""
    block = {**SWEEP["benchmarks"][1], "strategies": "data"}
    runs = [measured(n, sweep={"benchmarks": [SWEEP["benchmarks"][0], *(
        {**block, "layers": own} for own in (2, 8))]}, nodes=min(n, nodes)) for n in (2, 4, 8)]
    wanted = [check_config({"benchmarks": [{**block, "layers": layers}]}, "wanted")]
    made = next_sweep(wanted, predict(wanted, runs, [64], on_node=2 // min(nodes, 2)).cases)
    assert [int(line.split()[2]) for line in made.remarks if line.startswith("mpirun")] == counts


def test_a_prediction_is_no_measurement() -> None:
    document = present.plain(predicted(on(1, 2, 4, 8), [16]))
    assert document["schema"] == "hpcbench.predict"
    assert {one["status"] for one in document["cases"]} == {"predicted"}
    assert not {"median_s", "busbw_bytes_per_s"} & set(document["cases"][0])
    json.dumps(document, allow_nan=False)


def test_charts_hatch_what_is_extrapolated_and_mark_what_was_measured() -> None:
    runs = on(1, 2, 4, 8)
    along = ranks_along(runs, [8, 64])
    assert along == [1, 2, 4, 16, 32]
    times, parts = charts(predicted(runs, [*along, 8, 64], ["fsdp"]), [8, 64])
    assert isinstance(times, LineChart) and isinstance(parts, BarChart)
    known, inside, outside = times.panels[0].lines
    assert [x for x, _ in known.points] == [1, 2, 4, 8]
    assert not known.is_predicted and inside.is_predicted and outside.is_predicted
    assert [x for x, _ in outside.points] == [8, 16, 32, 64]
    assert outside.hatched and not inside.hatched
    assert all(point.band for _, point in (*inside.points, *outside.points))
    near, far = parts.sections[0].bars
    assert near.limit == known.points[-1][1].value and far.limit is None
    for bar, hatched in ((near, False), (far, True)):
        assert {look.label.partition(",")[0] for _, look in bar.segments} == {
            "computing", "all_gather", "reduce_scatter"}
        assert {look.hatched for _, look in bar.segments} == {hatched}
        assert sum(length for length, _ in bar.segments) == pytest.approx(bar.cells[0])
    assert any(one.get_hatch() for one in draw(parts, "").axes[0].patches)
    assert any(one.get_hatch() for one in draw(times, "").axes[0].collections)
    several = list(charts(predicted(runs, [64]), [64]))
    assert len({line.label for line in several[0].panels[0].lines} - {""}) == MOST_CASES
    assert not list(charts(predicted(on(2, 4), [64]), [64]))


def test_calls_between_nodes_are_not_guessed_from_those_within_one() -> None:
    runs = [measured(n, nodes=1) for n in (1, 2, 4, 8)]
    for one in predicted(runs, [64]).cases:
        assert one.step is None
        assert "between nodes" in one.refused
    assert all(one.step for one in predicted(runs, [16], on_node=16).cases)


HYBRID: dict[str, Any] = {"benchmarks": [
    {**SWEEP["benchmarks"][1], "strategies": {"hybrid": {"tp": 2}}}]}


def shared_s(case: Case, on_node: int) -> float:
    """The true time of a case where all groups of a node that call at once share its link."""
    demand = planned_fact(case, StepDemand)
    assert demand is not None
    return 1e-6 + FLOP_S * demand.flops + sum(
        call.number * ring_s(call.ranks, call.size_bytes) * min(call.stride, on_node)
        for call in demand.calls)


def test_groups_that_share_a_link_have_a_law_of_their_own() -> None:
    """Of 2 groups of stride 2 on nodes of 2 ranks each takes twice as long."""
    both = {"benchmarks": [{**SWEEP["benchmarks"][0], "groups": [1, {"stride": 2}]}]}
    runs = [measured(n, partial(shared_s, on_node=2), both, n // 2) for n in (4, 6, 8)]
    for one in predicted(runs, [16]).cases:
        assert one.case is not None
        assert values(one)[0] == pytest.approx(shared_s(one.case, 2), rel=0.03)


@pytest.mark.parametrize("own", [True, False])
def test_steps_whose_groups_share_a_link_need_calls_that_do(own: bool) -> None:
    made = sweep_for(Sweep(HYBRID), 64, 2) if own else None
    sweep = dict(made.content) if made else {"benchmarks": [*SWEEP["benchmarks"][:1],
                                                            *HYBRID["benchmarks"]]}
    runs = [measured(n, partial(shared_s, on_node=2), sweep, n // 2) for n in (4, 6, 8)]
    step = named(predicted(runs, [64]).cases, "hybrid")
    if own:
        assert values(step)[0] == pytest.approx(shared_s(step.case, 2), rel=0.05)
        assert "contention" not in step.step.beyond
    else:
        assert "{stride: 2}" in step.refused


def test_calls_at_once_in_a_node_that_were_not_measured_so_are_marked() -> None:
    sweep = {"benchmarks": [{**SWEEP["benchmarks"][0], "world_size": [2, "all"],
                             "collective": ["all_reduce", "all_gather"]}, *HYBRID["benchmarks"]]}
    step = named(predicted([measured(n, sweep=sweep, nodes=1) for n in (2, 4, 6, 8)], [16],
                           on_node=16).cases, "hybrid")
    assert {"ranks", "contention"} <= set(step.step.beyond)


def test_noise_that_hides_everything_is_refused() -> None:
    random = np.random.default_rng(7)

    def noisy(case: Case) -> float:
        return true_s(case) * float(np.exp(1.5 * random.standard_normal()))

    found = predicted(on(2, 4, 8, clock=noisy), [64], ["all_reduce"])
    assert any(one.step is None and "interval" in one.refused for one in found.cases)


def points(ranks: Sequence[int], sizes: Sequence[int], seconds: Callable[..., float]) -> Points:
    n, size = np.array([(n, size) for n in ranks for size in sizes], float).T
    times = np.array([seconds(*pair) for pair in zip(n, size, strict=True)])
    return Points(n, size, times, np.full(len(times), 0.01))


def test_sizes_beyond_those_measured_widen_the_interval() -> None:
    law = CallLaw("all_reduce", points((2, 4, 8), (2**18, 2**20), lambda n, size: ring_s(
        n, size) * (1 + 0.03 * (n == 4))))
    near, far = (law.predict(16, size).log_error for size in (2**20, 2**28))
    assert far > 2 * near
    law = CallLaw("all_reduce", points((2, 4, 8), (2**16, 2**18, 2**20), lambda n, size: ring_s(
        n, size) * (1 + 0.2 * (n == 4 and size == 2**18))))
    near, far = (law.predict(16, size).log_error for size in (2**20, 2**22))
    assert far > 1.4 * near
    one = CallLaw("all_reduce", points((2, 4, 8), (2**20,), ring_s))
    assert not one.why_not(16, 2**20)
    assert "second size" in one.why_not(16, 2**24)


def test_calls_of_no_bytes_have_a_time() -> None:
    law = CallLaw("all_reduce", points((2, 4, 8), SIZES, lambda n, size: 1e-9 * size * (n - 1) / n))
    assert law.predict(16, 0).time.value >= 0


def test_steps_take_the_laws_of_their_own_environment() -> None:
    def slow(case: Case) -> float:
        return true_s(case) * (3 if ("OMP_WAIT_POLICY", "PASSIVE") in case.env else 1)

    for order in (("ACTIVE", "PASSIVE"), ("PASSIVE", "ACTIVE")):
        sweep = {**SWEEP, "benchmarks": [{**block, "env": {"OMP_WAIT_POLICY": [*order]}}
                                         for block in SWEEP["benchmarks"]]}
        found = predicted(on(1, 2, 4, 8, clock=slow, sweep=sweep), [16], ["data"]).cases
        assert len(found) == 2
        for one in found:
            assert values(one)[0] == pytest.approx(slow(one.case), rel=0.05)


def test_another_shape_is_as_far_as_the_nearest_shape_was_measured() -> None:
    """Layers 2 on 2 to 64 ranks and 8 on 2 to 8: 4 on 64 are as far as from 8, in either order."""
    def layered(layers: int) -> dict[str, Any]:
        return {"benchmarks": [SWEEP["benchmarks"][0], {
            **SWEEP["benchmarks"][1], "layers": layers, "strategies": {"data": {}}}]}

    runs = [*on(2, 4, 8, 64, sweep=layered(2)), *on(2, 4, 8, sweep=layered(8))]
    wanted = [check_config(layered(4), "sweep.json")]
    both = [predict(wanted, some, [64], ["data"]).cases[0] for some in (runs, runs[::-1])]
    assert values(both[0]) == pytest.approx(values(both[1]))
    assert {"ranks", "shape"} <= set(both[0].step.beyond)


def test_a_step_is_no_more_certain_than_the_laws_of_its_calls() -> None:
    """Calls on three numbers of ranks leave two out, whatever the numbers of steps."""
    runs = [*on(1, 2, 4, 8), *on(3, 5, 6, sweep={"benchmarks": SWEEP["benchmarks"][1:]})]
    step = named(predicted(runs, [16]).cases, "data")
    assert min(part.degrees for part in step.step.terms) == 2


def test_a_law_that_does_not_describe_its_medians_says_so() -> None:
    def stepped(case: Case) -> float:
        return true_s(case) * (1 if case.world_size % 3 else 1.6)

    notes = " ".join(predicted(on(2, 3, 4, 6, 8, clock=stepped), [16]).notes)
    assert "all_reduce of gloo, all_gather of gloo, reduce_scatter of gloo: medians" in notes
    assert notes.count("scatter by up to") == 1
    assert "scatter" not in " ".join(predicted(on(2, 4, 8), [16]).notes)


def test_a_case_that_is_not_there() -> None:
    with pytest.raises(UsageError):
        predicted(on(2, 4), [8], ["no_such_case"])


def test_advise_names_a_way_that_would_be_faster_on_most_ranks() -> None:
    """On 8 ranks one size of buckets was tried, and is slow; on fewer another was, too."""
    def slow(case: Case) -> float:
        return true_s(case) * (3 if "bucket_mb=25" in case.label.split() else 1)

    both = {**SWEEP, "benchmarks": [SWEEP["benchmarks"][0], {
        **SWEEP["benchmarks"][1], "strategies": {"single": {}, "data": {"bucket_mb": [1, 25]}}}]}
    whole = on(1, 2, 4, 8, sweep=both, clock=slow)
    last = whole[-1].results
    kept = tuple(item for item in last.cases if "bucket_mb=1" not in item.case.label.split())
    runs = [*whole[:-1], replace(whole[-1], results=replace(last, cases=kept))]
    record = TOPIC.analysis(runs, TopicOptions())
    (one,) = record.alternatives
    wanted, best = (true_s(item.case) for name in ("1", "25") for item in last.cases
                    if f"bucket_mb={name}" in item.case.label.split())
    assert one.ratio.value == pytest.approx(3 * best / wanted, rel=0.03)
    assert one.ratio.ends[0] > 1
    assert [answer.certainty for answer in record.answers] == [CLEAR]
    assert TOPIC.analysis(whole[:2], TopicOptions()).answers == ()


def test_the_sweep_that_carries_a_prediction_does(tmp_path: Path) -> None:
    wanted, small = tmp_path / "wanted.json", tmp_path / "small.json"
    wanted.write_text(json.dumps({"benchmarks": SWEEP["benchmarks"][1:]}), encoding="utf-8")
    line = ["gen-config", "--from", str(wanted), "--for-prediction", "64", "-o", str(small), "-q"]
    assert hpcbench(*line).returncode == 2  # of how many ranks is a node?
    assert not small.exists()
    done = hpcbench(*line, "--ranks", "64")
    assert (done.returncode, done.stdout) == (0, f"{small}\n"), done.stderr
    runs = [measured(n, sweep=read_config(small)) for n in (1, 2, 4, 8)]
    cases = predict([load_config(wanted)], runs, [64]).cases
    assert cases
    assert all(one.step for one in cases)


def test_the_command_predicts_from_files(tmp_path: Path) -> None:
    paths = []
    for run in on(1, 2, 4, 8):
        paths.append(str(tmp_path / f"{run.path}.h5"))
        with new_results(Path(paths[-1])) as writer:
            writer.finish(replace(run.results, run=replace(run.results.run, run_id=run.path)))
    done = hpcbench("predict", *paths, "--world-size", "16,32", "--case", "all_reduce", "--json")
    document = json.loads(done.stdout)
    assert [one["ranks"] for one in document["cases"]] == [16] * len(SIZES) + [32] * len(SIZES)
    shown = hpcbench("predict", *paths, "--world-size", "16", "--plot", str(tmp_path / "p.png"))
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "17 of 17 cases predicted" in shown.stdout
    after = hpcbench("predict", *paths, "--world-size", "16", "--next", str(tmp_path / "n.yaml"))
    assert f"hpcbench plan {tmp_path / 'n.yaml'}" in " ".join(after.stdout.split())
    assert {one.name for one in tmp_path.glob("p*")} == {"p.png", "p.txt", "p-2.png", "p-2.txt"}
    for bad in (["--world-size", "8..4"], ["--world-size", "8", "--plot", "p.jpeg"],
                ["--world-size", "8", "--traffic", "t", "--model", "gpt2"],
                ["--world-size", "8", "--case", "nothing"]):
        assert hpcbench("predict", *paths, *bad).returncode == 2


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return the results files of runs on 2, 4 and 8 ranks."""
    paths = []
    for run in on(2, 4, 8):
        paths.append(str(tmp_path_factory.mktemp("stored") / "results.h5"))
        with new_results(Path(paths[-1])) as writer:
            writer.finish(replace(run.results, run=replace(run.results.run, run_id=run.path)))
    return paths


@pytest.mark.parametrize(("flag", "name", "others"), [
    ("--next", "n.txt", ()), ("--plot", "p.jpeg", ()), ("--next", "n.yaml", ("n.yaml",)),
    ("--plot", "p.png", ("p.png",)), ("--plot", "p.png", ("p-2.txt",))])
def test_nothing_is_written_over_or_under_a_wrong_name(
    flag: str, name: str, others: Sequence[str], stored: list[str], tmp_path: Path,
) -> None:
    for other in others:
        (tmp_path / other).write_text("kept", encoding="utf-8")
    also = ("--plot", "b.png") if flag == "--next" else ("--next", "b.yaml")
    line = ["predict", *stored, "--world-size", "16", flag, str(tmp_path / name), also[0],
            str(tmp_path / also[1])]
    done = hpcbench(*line)
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert flag in done.stderr and "-o" not in done.stderr.split()
    assert {path.name: path.read_text("utf-8") for path in tmp_path.iterdir()} == dict.fromkeys(
        others, "kept")
    if others:
        assert hpcbench(*line, "--force").returncode == 0
        assert (tmp_path / others[0]).read_bytes() != b"kept"


def test_where_nothing_is_predicted_nothing_is_drawn(stored: list[str], tmp_path: Path) -> None:
    line = ["predict", *stored[:2], "--world-size", "64", "--plot", str(tmp_path / "p.png")]
    done = hpcbench(*line, "--json")
    assert done.returncode == 0
    assert not [*tmp_path.iterdir()]
    assert [note for note in json.loads(done.stdout)["notes"] if str(tmp_path) in note]


@pytest.mark.parametrize(("text", "wanted"), [
    ("8..4096", [8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096]), ("96, 8..16", [8, 16, 96]),
    ("6..20", [6, 8, 16, 20]), ("8..8,8", [8]), *((text, None) for text in (
        "8..4", "8..", "..8", "0..8", "1..1000000", "8..9..10", "8,,9", "", "8.. -9", "9" * 5000))])
def test_numbers_of_ranks_are_ranges_too(text: str, wanted: list[int] | None) -> None:
    if wanted:
        assert numbers_of_ranks(text) == wanted
        return
    with pytest.raises(UsageError, match=r"--world-size .*8\.\.64"):
        numbers_of_ranks(text)


def test_a_price_is_not_for_recorded_calls(stored: list[str]) -> None:
    done = hpcbench("predict", *stored, "--world-size", "16", "--traffic", "t", "--price", "0")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert "--price" in done.stderr


@pytest.mark.parametrize("line", [("predict", "--world-size", "16"), ("advise",)])
def test_a_price_is_a_number(line: Sequence[str], stored: list[str]) -> None:
    done = hpcbench(*line, *stored, "--price", "inf")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


@pytest.mark.parametrize(("file", "ranks", "wanted"), [
    ({}, None, None), ({}, 8, 8), ({"num_devices": 4}, None, 4), ({"num_devices": 4}, 8, 8)])
def test_the_ranks_of_a_node_are_given(
    file: dict[str, int], ranks: int | None, wanted: int | None,
) -> None:
    base = Sweep({"hardware": file, "benchmarks": SWEEP["benchmarks"][1:]})
    if wanted is None:
        with pytest.raises(UsageError, match=r"--ranks N.*hardware\.num_devices"):
            sweep_for(base, 4096, ranks)
        return
    made = sweep_for(base, 4096, ranks)
    assert made.ranks == 4 * wanted
    assert made.remarks[-1].endswith(f"--ranks-per-node {wanted}")


def test_a_wrong_name_is_refused_before_the_machine_is_probed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hpcbench.launch.probe.probe_here", lambda: pytest.fail("probed"))
    done = hpcbench("gen-config", "here", "--for-prediction", "64", "-o", "b.txt")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)


def test_blocks_of_calls_take_no_name_of_another() -> None:
    training, calls = SWEEP["benchmarks"][1], SWEEP["benchmarks"][0]
    blocks = [training, {**training, "device": "cuda"}, {
        **calls, "collective": "all_reduce", "size": 1024, "name": "all_reduce-gloo"}]
    made = sweep_for(Sweep({"benchmarks": blocks}), 64, 64)
    assert {block["device"] for block in made.content["benchmarks"][3:]} == {"cpu", "cuda"}


def test_runs_that_give_several_blocks_one_name_have_a_next_sweep() -> None:
    sizes = [SIZES, SIZES, SIZES[:3]]
    runs = [measured(n, sweep={"benchmarks": [{
        **SWEEP["benchmarks"][0], "name": "calls", "size": own}]})
        for n, own in zip((2, 4, 8), sizes, strict=True)]
    made = next_sweep(sweeps_of(runs), predicted(runs, [32]).cases)
    assert [len(block["size"]) for block in made.content["benchmarks"]] == [5, 3]


def test_the_next_sweep_has_the_chosen_cases_alone() -> None:
    block = {**SWEEP["benchmarks"][1], "strategies": {
        "data": [{"bucket_mb": [1, 25]}, {"balance": ["dynamic"]}], "fsdp": {}}}
    runs = on(2, 4, 8, sweep={"benchmarks": [SWEEP["benchmarks"][0], block]})
    sweeps = sweeps_of(runs)
    calls = next_sweep(sweeps, predicted(runs, [32], ["all_reduce", "65536B"]).cases)
    assert [(one["collective"], one["size"]) for one in calls.content["benchmarks"]] == [
        (["all_reduce"], [65536])]
    steps = next_sweep(sweeps, predicted(runs, [32], ["data", "bucket_mb=1 "]).cases)
    assert steps.content["benchmarks"][0]["strategies"] == {"data": [{"bucket_mb": [1]}]}
    block["strategies"] = {name: {"bucket_mb": [1, 25]} for name in ("data", "zero1")}
    runs = on(2, 4, 8, sweep={"benchmarks": [SWEEP["benchmarks"][0], block]})
    both = next_sweep(sweeps_of(runs), predicted(runs, [32], ["bucket_mb=1 "]).cases)
    assert both.content["benchmarks"][0]["strategies"] == {
        name: [{"bucket_mb": [1]}] for name in ("data", "zero1")}


def test_planned_cases_that_cannot_run_are_refused_with_the_reason() -> None:
    sweep = {"benchmarks": [SWEEP["benchmarks"][0], {
        **SWEEP["benchmarks"][1], "strategies": {"data": {}, "hybrid": {"tp": 3}}}]}
    found = predict([check_config(sweep, "wanted")], on(2, 4, 8), [6, 16])
    hybrid = [one for one in found.cases if "hybrid" in one.label and one.ranks == 16]
    assert "3" in hybrid[0].refused
    with pytest.raises(UsageError, match="3"):
        predict([check_config(sweep, "wanted")], on(2, 4, 8), [6, 16], ["hybrid"]).on([16])


def test_calls_are_measured_in_the_dtype_of_their_steps() -> None:
    """Those in fp32 that the file has cover no call in bf16."""
    calls = {**SWEEP["benchmarks"][0], "size": [2**10, 2**26]}
    training = {**SWEEP["benchmarks"][1], "strategies": "data", "dtype": ["fp32", "bf16"]}
    made = sweep_for(Sweep({"benchmarks": [calls, training]}), 64, 64)
    (block,) = made.content["benchmarks"][2:]
    assert (block["collective"], block["dtype"]) == ("all_reduce", "bf16")


def test_legends_lose_the_ranks_alone() -> None:
    block = {**SWEEP["benchmarks"][1], "strategies": {"data": {"bucket_mb": [1, 64]}}}
    runs = on(2, 4, 8, sweep={"benchmarks": [SWEEP["benchmarks"][0], block]})
    times, _ = charts(predicted(runs, [64], ["bucket_mb"]), [64])
    assert {line.label for line in times.panels[0].lines} - {""} == {
        f"transformer-tiny bucket_mb={size}" for size in (1, 64)}

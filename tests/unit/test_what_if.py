"""What recorded communication would take otherwise, and the sweep that proves it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import ttest_ind
from typer.testing import CliRunner

from hpcbench.answers.answer import CANNOT_TELL, CLEAR, Run, TopicOptions
from hpcbench.cli import app
from hpcbench.config.load import load_config
from hpcbench.errors import UsageError
from hpcbench.interop.answers.causes import causes
from hpcbench.interop.answers.isolated_calls import ComparedCalls, IsolatedTimes, ratio_of
from hpcbench.interop.answers.what_if import (
    PREDICTED,
    REAL,
    SLOWER,
    UNDECIDED,
    Alternative,
    WhatIf,
    proof_of,
    verdict_of,
    what_if,
)
from hpcbench.operations.traffic import (
    CallForm,
    CallGroup,
    RankOrder,
    Signature,
    TrafficRecord,
    traffic_text,
)
from hpcbench.plan.case import Case
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results_file import open_results
from hpcbench.trace.schema import Header, Record
from synthetic import make_case, plan_of, with_rows, write_synthetic_run

PASSES, CALLS, RECORDED_NS = 9, 20, 40_000
TREE = (("NCCL_ALGO", "Tree"),)


def signature(collective: str = "all_reduce", size: int = 8, **changes: Any) -> Signature:
    values = {"collective": collective, "dtype": "fp32",
              "operator": "sum" if collective == "all_reduce" else None, "root": None,
              "elements_in": (size // 4,), "elements_out": (size // 4,), "splits_in": None,
              "splits_out": None, "group": 0, "count": CALLS, "bytes": size, "backend": "gloo"}
    return Signature(**{**values, **changes})


def record(
    *signatures: Signature, ranks: int = 2, gap_ns: int | None = 100_000,
    duration_ns: Callable[[int], int | None] = lambda rank: RECORDED_NS,
) -> TrafficRecord:
    """A job that makes CALLS calls of each form, 100 us apart, which take 40 us."""
    forms = signatures or (signature(),)
    number = CALLS * len(forms)
    orders = tuple(RankOrder(
        rank, tuple(range(len(forms))) * CALLS, tuple(range(number)),
        (None, *(gap_ns,) * (number - 1)), (duration_ns(rank),) * number, (None,) * number)
        for rank in range(ranks))
    return TrafficRecord(("flight recorder 2.10",), ("a",), ranks, (),
                         (CallGroup("0", "", tuple(range(ranks))),), forms, orders)


def run(
    folder: Path, cases: Mapping[Case, float], ranks: int = 2, node: str = "",
) -> Path:
    """Measure cases that take so many us, 5 % more in each further pass, of which there are 9."""
    def change(rank: int, one: Record) -> Iterable[Record]:
        rows = one.samples.rows()
        at = next(time_us for case, time_us in cases.items() if case.case_id == one.case_id)
        jitter = [1 + (37 * number % 50) / 1e4 for number in range(len(rows))]
        rows[:, 1] = [start + round(1000 * at * 1.05 ** one.pass_index * each) for start, each in
                      zip(rows[:, 0].tolist(), jitter, strict=True)]
        yield with_rows(one, rows)

    def headers(header: Header) -> Header:
        name = node or f"host{header.rank // 2}"
        return replace(header, hostname=name, node=name)

    write_synthetic_run(folder, plan_of(cases, ranks, PASSES), change=change, headers=headers)
    reduce_folder(folder)
    return folder


def case(index: int = 0, size: int = 8, collective: str = "all_reduce", **changes: Any) -> Case:
    op = "sum" if collective == "all_reduce" else None
    return make_case(index, **{
        "mode": "isolated", "iterations": 10, "collective": collective, "op": op,
        "requested_bytes": size, "size_bytes": size, "count": size // 4, **changes})


def asked(traffic: TrafficRecord, *folders: Path) -> WhatIf:
    with ExitStack() as stack:
        runs = [Run(str(folder), file.results, file) for folder in folders
                for file in (stack.enter_context(open_results(folder)),)]
        return what_if(runs, TopicOptions(traffic=traffic))


def named(found: WhatIf, name: str) -> Alternative:
    return next(one for one in found.alternatives if one.name == name)


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """20 us at present; 10 with NCCL_ALGO=Tree, 30 with another backend; all in one run."""
    return run(tmp_path_factory.mktemp("settings"), {
        case(): 20, case(1, env=TREE): 10, case(2, backend="mpi"): 30})


def test_a_setting_changes_the_isolated_part_of_the_recorded_time(settings: Path) -> None:
    found = asked(record(), settings)
    assert found.time_s == pytest.approx(CALLS * 40e-6)
    tree = named(found, "NCCL_ALGO=Tree")
    assert tree.change and tree.change.low is not None and tree.change.high is not None
    isolated_us = 20 * 1.05 ** 4 * 1.00125
    assert tree.change.value == pytest.approx(-isolated_us / 2 / 40, rel=0.002)
    assert tree.time_s == pytest.approx(found.time_s * (1 + tree.change.value))
    assert tree.change.low <= tree.change.value <= tree.change.high < -0.25
    assert (tree.verdict, tree.pairs, tree.covered, tree.missing) == (REAL, PASSES, 1.0, "")
    assert named(found, "backend mpi").verdict == SLOWER
    assert found.answers[0].certainty == CLEAR and "NCCL_ALGO=Tree" in found.answers[0].sentence


def test_the_span_bounds_the_gain_of_the_job(settings: Path) -> None:
    found, number = asked(record(), settings), CALLS
    assert found.span_s == pytest.approx((100e-6 * (number - 1)) + 40e-6)
    assert found.of_span == pytest.approx(number * 40e-6 / (100e-6 * (number - 1) + 40e-6))
    tree = named(found, "NCCL_ALGO=Tree")
    assert tree.exposed == pytest.approx(tree.change.value * found.of_span)  # type: ignore
    quicker = asked(record(duration_ns=lambda rank: None if rank else 10_000), settings)
    assert quicker.time_s == pytest.approx(number * 10e-6), "of the mean of those that are known"
    tree = named(quicker, "NCCL_ALGO=Tree")
    assert tree.change and tree.change.value == pytest.approx(-1 / 2, rel=0.002)
    lost = asked(record(gap_ns=None), settings)
    assert lost.span_s is None and named(lost, "NCCL_ALGO=Tree").exposed is None


def test_two_runs_are_no_pairs(settings: Path, tmp_path: Path) -> None:
    present = run(tmp_path / "a", {case(): 20})
    tree = named(asked(record(), present, run(tmp_path / "b", {case(1, env=TREE): 10})),
                 "NCCL_ALGO=Tree")
    assert (tree.verdict, tree.pairs) == (PREDICTED, 0) and tree.change
    assert tree.change.value == pytest.approx(
        named(asked(record(), settings), "NCCL_ALGO=Tree").change.value, rel=1e-6)  # type: ignore


def test_passes_with_any_number_of_calls_prove_nothing(settings: Path, tmp_path: Path) -> None:
    """Passes of a proof count before those of a sweep with iterations auto, and alone."""
    auto = run(tmp_path / "auto", {case(min_iterations=5): 20,
                                   case(1, env=TREE, min_iterations=5): 15})
    one = named(asked(record(), auto), "NCCL_ALGO=Tree")
    assert (one.verdict, one.pairs) == (PREDICTED, PASSES)
    assert one.change and one.change.value == pytest.approx(-24.31 / 4 / 40, rel=0.01)
    both = named(asked(record(), auto, settings), "NCCL_ALGO=Tree")
    assert (both.verdict, both.pairs) == (REAL, PASSES)
    assert both.change and both.change.value == pytest.approx(-24.31 / 2 / 40, rel=0.01)


def test_equal_settings_are_no_gain(tmp_path: Path) -> None:
    found = asked(record(), run(tmp_path, {case(): 20, case(1, env=TREE): 20}))
    assert named(found, "NCCL_ALGO=Tree").verdict == UNDECIDED
    assert found.answers[-1].certainty == CANNOT_TELL


def test_without_one_that_is_unset_the_first_value_is_the_present(tmp_path: Path) -> None:
    ring = (("NCCL_ALGO", "Ring"),)
    found = asked(record(), run(tmp_path, {case(env=ring): 20, case(1, env=TREE): 10}))
    assert found.env == ring and named(found, "NCCL_ALGO=Tree").verdict == REAL


def test_calls_that_are_not_measured_keep_their_time(settings: Path) -> None:
    """Half of the time is covered: the gain halves, and the other form is named."""
    found = asked(record(signature(), signature("broadcast", 64)), settings)
    tree, alone = named(found, "NCCL_ALGO=Tree"), named(asked(record(), settings), "NCCL_ALGO=Tree")
    assert tree.covered == pytest.approx(0.5) and "broadcast" in tree.missing
    assert tree.change and alone.change
    assert tree.change.value == pytest.approx(alone.change.value / 2)
    forms = [signature("broadcast", 64 << number) for number in range(2)]
    assert named(asked(record(signature(), *forms), settings),
                 "NCCL_ALGO=Tree").verdict == UNDECIDED


def test_calls_without_durations_take_their_isolated_time(settings: Path) -> None:
    found = asked(record(duration_ns=lambda rank: None), settings)
    assert found.time_s == pytest.approx(CALLS * 20e-6 * 1.05 ** 4, rel=0.01)
    tree = named(found, "NCCL_ALGO=Tree")
    assert tree.change and tree.change.value == pytest.approx(-0.5, abs=0.01)
    other = asked(record(signature("broadcast"), duration_ns=lambda rank: None), settings)
    assert other.time_s == 0 and other.untimed == 2 * CALLS
    assert other.answers[0].certainty == CANNOT_TELL


def test_without_delay_the_arrival_is_gone(settings: Path) -> None:
    late = record(duration_ns=lambda rank: 20_000 + 1_000_000 * (rank == 0))
    one = named(asked(late, settings), "no delays")
    assert one.verdict == PREDICTED and one.change
    assert one.change.value == pytest.approx(-0.5e6 / 0.52e6, abs=0.01)
    assert named(asked(record(), settings), "no delays").verdict == UNDECIDED
    varied = replace(late, order=tuple(replace(order, duration_ns=tuple(
        20_000 + 40_000 * (at % 5) * (order.rank == 0) for at in range(CALLS)))
        for order in late.order))
    with open_results(settings) as file:
        (form,) = causes([Run("x", file.results, file)], TopicOptions(traffic=varied)).forms
    change = named(asked(varied, settings), "no delays").change
    assert form.arrival and change
    low, high = form.arrival.ends
    assert low < high and change.ends == pytest.approx((-high, -low))


UNEVEN = ((16, 48), (48, 144))
"""Elements that each of two ranks sends to each: 64 and 192, the mean is 128."""


@pytest.mark.parametrize(("sizes", "ratio"), [
    ((512, 768), 1 / 2), ((256, 1024), 1 / 4 ** 0.292481), ((600, 768), None)])
def test_balanced_sizes_lie_between_measured_ones(
    tmp_path: Path, sizes: tuple[int, int], ratio: float | None,
) -> None:
    one = signature("all_to_all", 768, splits_in=UNEVEN, splits_out=UNEVEN)
    small, large = sizes
    folder = run(tmp_path, {case(0, small, "all_to_all"): 10, case(1, large, "all_to_all"): (
        20 if large == 768 else 40)})
    found = asked(record(one), folder)
    even = named(found, "balanced sizes")
    if ratio is None:
        assert even.change is None and "all_to_all" in even.missing
        return
    is_exact = small != 256
    assert (even.verdict, even.pairs) == (REAL if is_exact else PREDICTED, PASSES)
    assert even.change
    assert named(asked(record(one, signature()), folder), "balanced sizes").covered == 1
    sweep = proof_of(record(one), found).sweep
    assert [block["size"] for block in sweep["benchmarks"]] == [[512, 768]]
    share = even.change.value / (ratio - 1)
    assert 0.4 < share <= 1


def test_a_node_is_left_out_if_that_was_measured(tmp_path: Path) -> None:
    whole = run(tmp_path / "whole", {case(world_size=4): 20}, ranks=4)
    traffic = record(ranks=4)
    one = named(asked(traffic, whole), "without a node")
    assert one.change is None and one.missing
    less = run(tmp_path / "less", {case(): 10}, ranks=2, node="host0")
    one = named(asked(traffic, less, whole), "without host1")
    assert (one.verdict, one.pairs) == (PREDICTED, 0)
    assert one.change and -0.32 < one.change.value < -0.29


def test_a_size_between_two_lies_on_the_line_of_their_logarithms() -> None:
    form, key = CallForm("all_to_all", "gloo", "fp32", None, None, 2, 1), (0, 0, 0)
    measured = IsolatedTimes({(form, ()): {256: {key: 10.0}, 1024: {key: 40.0}}}, {})
    assert measured.between(form, (), 512) == {key: pytest.approx(20.0)}
    assert measured.between(form, (), 256) is measured.between(form, (), 2048) is None


def test_ratios_of_few_passes_have_no_interval() -> None:
    one, two = {(0, 0, 0): 2.0, (0, 0, 1): 2.0}, {(0, 0, 0): 1.0, (0, 0, 1): 1.0}
    found = ratio_of([ComparedCalls(3, one, two)], {0})
    assert found.interval.value == 0.5 and found.interval.low is None
    assert verdict_of(found) == UNDECIDED


def test_passes_of_two_runs_are_compared_as_by_welch() -> None:
    sides = [2.0, 2.2, 2.1, 2.4], [1.0, 1.3, 1.1]
    before, after = ({(run, 0, number): time_s for number, time_s in enumerate(times)}
                     for run, times in enumerate(sides))
    found = ratio_of([ComparedCalls(3, before, after)], {0})
    known = ttest_ind(np.log(sides[1]), np.log(sides[0]), equal_var=False)
    assert found.chance == pytest.approx(known.pvalue)
    assert found.interval.ends == pytest.approx([*np.exp(known.confidence_interval())])


def test_launches_count_once() -> None:
    keys = [(0, launch, number) for launch in range(8) for number in range(3)]
    found = ratio_of([ComparedCalls(1, dict.fromkeys(keys, 2.0), {
        key: 1 + 0.01 * key[1] for key in keys})], {0})
    assert found.pairs == 8 and verdict_of(found) == REAL
    assert verdict_of(found._replace(is_proof=False)) == PREDICTED
    assert verdict_of(found._replace(chance=0.02), family=3) == UNDECIDED


def test_the_proof_has_both_settings(settings: Path, tmp_path: Path) -> None:
    proof = proof_of(record(), asked(record(), settings))
    assert (proof.name, proof.ranks) == ("NCCL_ALGO=Tree", 2)
    path = tmp_path / "prove.json"
    path.write_text(json.dumps(proof.sweep))
    plan = make_plan(load_config(path), 2)
    assert plan.passes == 9 and [case.env for case in plan.cases] == [(), TREE]
    assert all(case.is_fixed and case.iterations == 30 for case in plan.cases)
    faster = run(tmp_path / "mpi", {case(): 20, case(1, backend="mpi"): 10})
    path.write_text(json.dumps(proof_of(record(), asked(record(), faster)).sweep))
    assert [case.backend for case in make_plan(load_config(path), 2).cases] == ["gloo", "mpi"]
    near = run(tmp_path / "near", {case(): 20, case(1, backend="mpi"): 20.1})
    undecided = asked(record(), near)
    assert named(undecided, "backend mpi").verdict == UNDECIDED
    assert proof_of(record(), undecided).name == "backend mpi"
    slower = run(tmp_path / "slow", {case(): 20, case(1, backend="mpi"): 30})
    with pytest.raises(UsageError):
        proof_of(record(), asked(record(), slower))


def test_the_command_writes_the_proof(settings: Path, tmp_path: Path) -> None:
    traffic, proof = tmp_path / "traffic.json", tmp_path / "prove.json"
    traffic.write_text(traffic_text(record()))
    words = ["advise", str(settings), "--traffic", str(traffic), "--prove", str(proof)]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    for text in ("gain real", f"run {proof}", "--only what-if"):
        assert text in done.output.replace("\n", ""), done.output
    assert len(make_plan(load_config(proof), 2).cases) == 2
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 1 and isinstance(again.exception, UsageError)
    done = CliRunner().invoke(app, [*words, "--force", "--json", "--only", "causes"])
    document = json.loads(done.stdout)
    assert document["topics"].keys() == {"causes", "what-if"}
    assert document["topics"]["what-if"]["alternatives"][1]["verdict"] == REAL
    for wrong in (["--prove", str(proof)], ["--only", "what-if"]):
        failed = CliRunner().invoke(app, ["advise", str(settings), *wrong])
        assert isinstance(failed.exception, UsageError), failed.output

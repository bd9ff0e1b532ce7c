"""Exposed communication of trainings: who is paired with whom, the numbers, and where they stand.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from figure_texts import charts_of_kind, texts_of_first
from hpcbench.kinds.training.derive.deriver import EXPOSED
from hpcbench.kinds.training.derive.slow_ranks import (
    bubble_share,
    exposures,
    idle_shares,
    paired,
)
from hpcbench.kinds.training.plan.workload import training_of
from hpcbench.reduce.results import Arrival, CaseResult
from hpcbench.report.charts import case_to_map
from hpcbench.report.console import print_results
from hpcbench.report.summary import write_summary
from hpcbench.statistics.overlap import OverPasses
from hpcbench.views.columns import slow_rank_lines
from results_factory import make_results, not_ok
from training_cases import make_training
from training_results import trained, training_case, with_clear, with_peak

Capture = pytest.CaptureFixture[str]
PIPELINE: dict[str, Any] = {"dp": 1, "pp": 2, "options": (
    ("microbatches", 4), ("schedule", "1F1B"), ("stages_per_rank", "auto"))}


def run(
    communication: str, *passes_s: float | None, index: int, own_s: tuple[float, ...] = (),
    strategy: str = "data", **changes: Any,
) -> CaseResult:
    """Return a case with these medians of passes; each rank's own are ``own_s`` times as long."""
    case = training_case(strategy, index=index, communication=communication, **changes)
    known = sorted(time_s for time_s in passes_s if time_s is not None)
    item = trained(case, known[len(known) // 2], memory=None)
    assert item.timing is not None and item.timing.steps is not None
    steps = replace(item.timing.steps, pass_step_s=tuple(
        None if time_s is None else tuple(own * time_s for own in own_s or (1.0,) * 2)
        for time_s in passes_s))
    return replace(item, timing=replace(item.timing, pass_medians_s=passes_s, steps=steps))


def trio(**changes: Any) -> tuple[CaseResult, CaseResult, CaseResult]:
    """Return 10 ms with, 8 ms without, and 4 ms of communication; everything drifts alike."""
    return (run("on", 10e-3, 20e-3, None, index=0, **changes),
            run("off", 8e-3, 16e-3, 8e-3, index=1, own_s=(0.75, 1.0), **changes),
            run("only", 4e-3, 8e-3, 4e-3, index=2, **changes))


def test_numbers_are_made_within_a_pass() -> None:
    items = trio()
    told = exposures(items)
    assert [*told] == [items[0].case.case_id]
    found = told[items[0].case.case_id]
    assert found["exposed_s_passes"] == OverPasses(pytest.approx(3e-3), pytest.approx(2e-3),
                                                  pytest.approx(4e-3), 2)
    for name, value in (("exposed_share", 0.2), ("communication_overhead", 0.25),
                        ("overlap_efficiency", 0.5)):
        assert found[f"{name}_passes"] == OverPasses(*[pytest.approx(value)] * 3, 2)
    assert (found["off_s"], found["only_s"], found["not_paired"]) == (8e-3, 4e-3, ())
    steps = found["own_steps"]
    assert steps.ranks == (0, 1)
    assert [own.median for own in steps.own_s] == pytest.approx([6e-3, 8e-3])
    assert steps.idle_share == () and found["bubble_predicted"] is None
    assert paired(items) == {item.case.case_id for item in items[1:]}


def test_a_pipeline_has_its_bubble_beside_what_ranks_are_idle() -> None:
    items = trio(strategy="pipeline", **PIPELINE)
    found = exposures(items)[items[0].case.case_id]
    assert found["bubble_predicted"] == bubble_share("1F1B", 2, 4) == pytest.approx(0.2)
    assert [idle.median for idle in found["own_steps"].idle_share] == pytest.approx([0.4, 0.2])
    # 6 and 8 ms: the slow rank waits for one forward and one backward of 0.5 + 1 of the quick one
    assert found["own_steps"].uneven_bubble == pytest.approx([1 - 6 / 9.5, 1 - 8 / 9.5])
    of_two = make_training("pipeline", **{**PIPELINE, "tp": 2})
    assert idle_shares(of_two, [6e-3, 6e-3, 8e-3, 6e-3]) == pytest.approx(
        [1 - 6 / 9.5, 0.2, 1 - 8 / 9.5, 0.2]), "the second pair of ranks has equal stages"


@pytest.mark.parametrize(("change", "reason"), [
    (lambda off: (), "off of the same training was not run: it has another order or size, or is "
                     "not in the sweep"),
    (lambda off: (not_ok(off.case, "failed", "no memory"),), "off of the same training is failed"),
    (lambda off: (replace(off, timing=replace(off.timing, fold="global")),),
     "the time of off has fold global, not local_max"),
    (lambda off: (replace(off, timing=replace(off.timing, pass_medians_s=(None, None, 8e-3))),),
     "there is no pass in which off was run, too"),
])
def test_what_cannot_be_paired_has_a_reason(change: Any, reason: str) -> None:
    on, off, only = trio()
    found = exposures((on, *change(off), only))[on.case.case_id]
    assert found["not_paired"] == (f"communication {reason}",)
    assert [value for name, value in found.items() if name.endswith("_passes")] == [None] * 4
    assert found["off_s"] is None and found["only_s"] == 4e-3 and found["own_steps"].own_s == ()


def test_other_trainings_are_no_partners_and_nobody_misses_what_was_not_asked_for() -> None:
    on, off, _ = trio()
    other = run("off", 8e-3, index=3, batch_size=8)
    assert exposures((on,)) == exposures((on, other)) == {}
    assert paired((on, other)) == set()
    assert exposures((on, off))[on.case.case_id]["exposed_s_passes"] is not None


def test_rows_without_communication_stand_in_the_row_of_their_training(
    tmp_path: Path, capsys: Capture,
) -> None:
    alone = run("off", 8e-3, index=3, batch_size=8)
    results = with_peak(make_results((*trio(), alone)), fp32=50e9)
    print_results(results, tmp_path, explain=True)
    lines = capsys.readouterr().out.splitlines()
    head = lines.index("block trainings") + 1
    cells, *more = [line.split() for line in lines[head:] if line.startswith("data ")]
    assert lines[head].split()[-8:] == ["exposed", "exposed", "overhead", "overlap", "planned",
                                        "parity", "n", "status"]
    assert cells[-12:-7] == ["3.0", "20.0", "25.0", "50", "1.81"] and cells[-1] == "ok"
    assert len(more) == 1
    text = " ".join(more[0])
    assert text.startswith("data (communication off)") and text.endswith(
        "n/a: no communication 20 ok")
    assert "32000.0" not in text  # tokens/s
    told = unwrapped(lines)
    assert all(f"column {one.title}: {one.text.partition(';')[0]}" in told for one in EXPOSED)
    assert "medians over passes, which" in told, "3 and 20 are not 16 - 8 ms, and 8 ms of 16 ms"
    assert not any("idle =" in line for line in lines)
    assert not any("times as long" in line for line in lines)


def unwrapped(lines: Sequence[str]) -> str:
    return " ".join(" ".join(lines).split())


def test_what_ranks_of_a_pipeline_are_idle_is_shown_and_why_rows_are_not_paired(
    tmp_path: Path, capsys: Capture,
) -> None:
    on, off, _ = trio(strategy="pipeline", **PIPELINE)
    print_results(make_results((on, off)), tmp_path, explain=True)
    lines = capsys.readouterr().out.splitlines()
    assert ("pipeline: bubble 20.0 % as the "
            "schedule predicts, with the ranks' own times 36.8, 15.8 %; idle 40.0 % on rank 0, "
            "20.0 % on rank 1") in unwrapped(lines)
    reason = ("communication only of the same training was not run: it has another order or size, "
              "or is not in the sweep")
    assert f"1 row not paired: {reason}" in unwrapped(lines)
    assert any(line.startswith("idle = ") for line in lines)


def test_a_rank_that_is_slow_by_itself_is_named(tmp_path: Path, capsys: Capture) -> None:
    on, off = (run(name, 10e-3, 11e-3, index=at, own_s=(0.5, 1.0))
               for at, name in enumerate(("on", "off")))
    line = ("data: rank 1 computes slowly: 10.5 ms a step without communication, rank 0 "
            "5.25 ms (2.00x; passes 1.82x to 2.20x)")
    results = make_results((on, off))
    print_results(results, tmp_path)
    assert line not in unwrapped(capsys.readouterr().out.splitlines())
    print_results(with_clear(results, off.case, "step"), tmp_path)
    assert line in unwrapped(capsys.readouterr().out.splitlines())


def test_who_arrives_last_is_named(tmp_path: Path, capsys: Capture) -> None:
    item = trained(training_case())
    assert item.timing is not None and item.timing.steps is not None
    arrivals = tuple(Arrival(bucket, (3e-3, 9e-3), 1, share, 6e-3)
                     for bucket, share in ((1, 0.9), (5, 0.95)))
    steps = replace(item.timing.steps, arrivals=arrivals)
    item = replace(item, timing=replace(item.timing, steps=steps))
    line = ("data: rank 1 is last at the exchange in 95% of the steps, 6.00 ms behind the "
            "median; at the first of 5 buckets 6.00 ms")
    results = make_results((item,))
    for known, is_named in ((results, False), (with_clear(results, item.case, "arrives"), True),
                            (with_clear(results, item.case, "arrives", rank=0), False)):
        print_results(known, tmp_path)
        assert (line in unwrapped(capsys.readouterr().out.splitlines())) is is_named
    total, *_, first, second = slow_rank_lines(with_clear(results, item.case, "forward", "ready"))
    assert " 2 named" in total and "rank 1" in first and "forward" in first and "ready" in second


def test_the_summary_has_them_and_no_rates_of_what_trains_nothing(tmp_path: Path) -> None:
    write_summary(with_peak(make_results(trio()), fp32=50e9), tmp_path)
    document = json.loads((tmp_path / "summary.json").read_text())
    (row,) = document["results"]["training"]["data"]
    assert (row["exposed_s_least"], row["exposed_share"]) == pytest.approx((2e-3, 0.2))
    assert (row["communication_overhead"], row["overlap_efficiency"]) == pytest.approx((0.25, 0.5))
    assert row["own_step_s"] == pytest.approx([6e-3, 8e-3]) and row["not_paired"] is None
    assert row["parity"] == "12%"
    on, off, only = document["cases"]
    assert [item["communication"] for item in (on, off, only)] == ["on", "off", "only"]
    for item, parity in ((off, "n/a: no communication"), (only, "n/a: communication only")):
        assert item["status"] == "ok" and item["parity"] == parity
        assert item["tokens_per_second"] is item["samples_per_second"] is item["mfu"] is None
        assert item["exposed_s"] is None
    assert on["mfu"] > 0 and off["step_time_ms"] == 8.0
    with (tmp_path / "summary.csv").open(encoding="utf-8", newline="") as stream:
        assert [row["communication"] for row in csv.DictReader(stream)] == ["on", "off", "only"]


def test_figures_show_where_the_step_would_end() -> None:
    items = trio()
    results = make_results(items)
    (chart,) = charts_of_kind("training", items)
    assert chart.case_ids == tuple(item.case.case_id for item in items
                                   if training_of(item.case).communication == "on")
    assert "what is right of it is exposed" in texts_of_first(results)
    assert case_to_map(items) is items[0]
    assert "Dashed" not in texts_of_first(make_results(items[:1]))

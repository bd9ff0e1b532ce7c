"""The axis arrival: who enters late and when, what the plan makes of it, and what stamps say."""

from __future__ import annotations

import contextlib
import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from hpcbench.analysis.diagnose import diagnose
from hpcbench.answers.answer import Run, TopicOptions
from hpcbench.answers.check import refuse_limits
from hpcbench.config.load import check_config
from hpcbench.errors import ConfigError
from hpcbench.measurement.loop import LATE_NS, AgreedStart, entering_late, last_to_last
from hpcbench.operations.arrival import TOGETHER, ArrivalPattern
from hpcbench.plan.case import Case, case_from_json, case_to_json
from hpcbench.plan.expand import make_plan
from hpcbench.reduce.arrival import (
    absorbed_share,
    by_rank_s,
    entries,
    planned_ns,
    together_of,
    with_absorbed,
)
from hpcbench.reduce.reduce import reduce_folder
from hpcbench.reduce.results import CaseResult, CaseSamples, LateArrivals, Results
from hpcbench.reduce.results_file import open_results
from hpcbench.report.results_lines import column_lines
from hpcbench.report.summary import case_rows
from hpcbench.trace.clock import ClockModel
from hpcbench.trace.schema import SAMPLE_COLUMNS, Flag, Record
from hpcbench.units import duration_text, parse_duration_ns
from hpcbench.views.columns import arrival_tables
from hpcbench.views.table import WithInterval
from results_factory import MemorySamples, ok
from results_factory import flagged as with_timing
from synthetic import make_case, plan_of, with_rows, write_synthetic_run

BLOCK = {"kind": "collective", "collective": "all_reduce", "size": 64, "iterations": 20}
PRODUCT = {"kind": "primitive", "primitive": "tp_columnwise", "m": 16, "n": 8, "k": 8,
           "implementations": "torch"}
LATE = {"late": "last", "by": "250us"}


def planned(block: dict[str, Any], ranks: int = 4, **options: Any) -> tuple[Case, ...]:
    return make_plan(check_config({"benchmarks": [{**block, **options}]}, "test"), ranks).cases


@pytest.mark.parametrize(("text", "duration_ns", "shortest"), [
    ("250us", 250_000, "250us"), ("0.25ms", 250_000, "250us"), ("1.5 ms", 1_500_000, "1.5ms"),
    ("1500us", 1_500_000, "1.5ms"), ("0.1s", 100_000_000, "100ms"), ("1s", 10**9, "1s"),
    ("80ns", 80, "80ns"), ("1234567ns", 1_234_567, "1234.567us"), ("0ms", 0, "0"), (0, 0, "0"),
    ("0", 0, "0")])
def test_durations_are_exact(text: str | int, duration_ns: int, shortest: str) -> None:
    assert parse_duration_ns(text) == duration_ns
    assert duration_text(duration_ns) == shortest and parse_duration_ns(shortest) == duration_ns


@pytest.mark.parametrize("text", [
    "250", 250, "1.5", "-1ms", "1m", "1 sec", "", "0.5ns", None, True, False, ["1ms"], 0.5])
def test_what_is_no_duration_is_refused(text: Any) -> None:
    with pytest.raises(ValueError, match="duration|whole number of nanoseconds"):
        parse_duration_ns(text)


@pytest.mark.parametrize(("late", "of_rows"), [
    ("last", [[0, 0, 900]] * 4), (0, [[900, 0, 0]] * 4), (1, [[0, 900, 0]] * 4),
    ("rotating", [[900, 0, 0], [0, 900, 0], [0, 0, 900], [900, 0, 0]]),
    ("all", [[0, 450, 900]] * 4)])
def test_who_is_late_at_which_sample(late: str | int, of_rows: list[list[int]]) -> None:
    entry = ArrivalPattern(late, 900)
    assert [[entry.delay_ns(rank, 3, row) for rank in range(3)] for row in range(4)] == of_rows
    assert ArrivalPattern.from_text(entry.text) == entry and " " not in entry.text


@pytest.mark.parametrize("bad", [
    "late", "last:1ms", {}, {"late": "last"}, {"by": "1ms"}, {**LATE, "rank": 1}, 3, None, True, [],
    {"late": "first", "by": "1ms"}, {"late": -1, "by": "1ms"}, {"late": True, "by": "1ms"},
    {"late": 1.0, "by": "1ms"}, {"late": "1", "by": "1ms"}, {"late": [1], "by": "1ms"},
    {"late": 2**17, "by": "1ms"}, {"late": "last", "by": "1 hour"}, {"late": "last", "by": 1},
    {"late": "last", "by": "-1ms"}, {"late": "last", "by": "1001ms"}, {"late": {}, "by": "1ms"},
    {"late": "last", "by": None}])
def test_a_bad_arrival_is_one_line_that_names_it(bad: Any) -> None:
    with pytest.raises(ConfigError) as raised:
        planned(BLOCK, arrival=["together", bad])
    (line,) = str(raised.value).splitlines()
    assert "benchmarks[0].arrival" in line


def test_ids_labels_and_texts_of_cases() -> None:
    (plain,) = planned(BLOCK)
    together, late, same = planned(BLOCK, arrival=["together", LATE, {"late": "last", "by": 0}])
    assert together == plain and plain.arrival == TOGETHER and "late" not in plain.label
    assert len({case.case_id for case in (plain, late, same)}) == 3
    assert late.label == f"{plain.label} late=last:250us"
    assert late.arrival == ArrivalPattern("last", 250_000)
    assert planned(BLOCK, arrival={"late": "last", "by": "0.25ms"}) == (replace(late, index=0),)
    assert late.estimate_s > plain.estimate_s and case_from_json(case_to_json(late)) == late
    assert case_from_json(case_to_json(plain)) == plain
    assert together_of([together, late, same]) == dict.fromkeys(
        (late.case_id, same.case_id), plain.case_id)
    assert together_of([late]) == {late.case_id: ""} and not together_of([plain])


def test_plans_without_the_axis_are_those_of_before() -> None:
    config = check_config({"benchmarks": [BLOCK]}, "test")
    assert make_plan(config, 2).plan_hash == make_plan(
        check_config({"benchmarks": [{**BLOCK, "arrival": None}]}, "test"), 2).plan_hash
    plain = make_plan(check_config({"benchmarks": [{**BLOCK, "arrival": LATE}]}, "test"), 2)
    again = check_config({"benchmarks": plain.config["benchmarks"]}, "test")
    assert make_plan(again, 2).plan_hash == plain.plan_hash


@pytest.mark.parametrize(("block", "ranks", "options", "words"), [
    (BLOCK, 2, {}, None), (PRODUCT, 2, {}, None),
    (BLOCK, 2, {"mode": "pipelined"}, "mode isolated, not in pipelined"),
    (BLOCK, 2, {"mode": "barrier_start"}, "mode isolated, not in barrier_start"),
    (BLOCK, 1, {}, "another one that is punctual"),
    (BLOCK, 4, {"groups": 2, "arrival": {"late": 2, "by": "1ms"}}, "rank 2 is not one of 2 ranks"),
    (BLOCK, 4, {"groups": 2, "arrival": {"late": 1, "by": "1ms"}}, None),
    ({"kind": "hardware", "test": "gemm"}, 2, {}, "no single call"),
    ({"kind": "training", "model": "gpt2", "strategies": "data"}, 2, {}, "no single call")])
def test_what_cannot_arrive_late_is_a_skip(
    block: dict[str, Any], ranks: int, options: dict[str, Any], words: str | None,
) -> None:
    for case in planned(block, ranks, **{"arrival": LATE, **options}):
        assert case.skip is None if words is None else words in str(case.skip), case.skip


def test_limits_of_late_arrivals_are_of_sweeps_with_late_ranks() -> None:
    limits = [{"metric": "absorbed_share", "min": 0.5}]
    for arrival, known in ((LATE, True), ("together", False)):
        plan = make_plan(check_config(
            {"benchmarks": [{**BLOCK, "arrival": arrival}], "limits": limits}, "test"), 2)
        with contextlib.nullcontext() if known else pytest.raises(ConfigError):
            refuse_limits(plan)


class Alone:
    """A control group of one rank."""

    def barrier(self) -> None:
        pass

    def maximum(self, values: Any) -> Any:
        return values


def test_a_late_rank_spins_from_the_agreed_time_on() -> None:
    ticks = itertools.count(0, 100)
    start = AgreedStart(Alone(), ClockModel.identity(0), lambda: next(ticks), 5_000)
    delays = iter([20_000, 0])
    late = entering_late(start, lambda: next(delays), lambda: next(ticks))
    assert late() == 0
    assert start.start_ns + 20_000 <= next(ticks) <= start.start_ns + 21_000
    assert late() == 0 and next(ticks) <= start.start_ns + 1_000
    slow = itertools.count(0, 3 * LATE_NS)  # a clock that goes on by much at each look
    start = AgreedStart(Alone(), ClockModel.identity(0), lambda: next(slow), 500)
    assert entering_late(start, lambda: 20_000, lambda: next(slow))() == Flag.LATE_START


def test_the_precision_that_ends_a_case_is_that_from_the_last_arrival() -> None:
    rows = np.zeros((2, len(SAMPLE_COLUMNS)), dtype=np.int64)
    rows[:, 0], rows[:, 1] = [1000, 2000], [1400, 2700]
    assert last_to_last(ClockModel.identity(0))(rows, Alone()).tolist() == [400, 700]


def samples_of(start: Any, end: Any) -> CaseSamples:
    start_ns, end_ns = np.array(start), np.array(end)
    ranks, count = start_ns.shape
    one = np.zeros(count, dtype=np.int64)
    return CaseSamples(tuple(range(ranks)), one, np.arange(count) // 2, start_ns, end_ns,
                       start_ns, start_ns, np.zeros_like(start_ns))


def test_entries_follow_from_stamps() -> None:
    """Three ranks, two passes of two samples; rank 2, late by 100, misses its moment by 11 once."""
    case = replace(make_case(0, world_size=3, mode="isolated"), arrival=ArrivalPattern("last", 100))
    samples = samples_of([[0, 0, 1, 0], [1, 0, 0, 9], [100, 111, 90, 108]],
                         [[30, 40, 30, 40], [21, 20, 60, 29], [130] * 4])
    plan = planned_ns(case, samples)
    assert plan.tolist() == [[0] * 4, [0] * 4, [100] * 4]
    found = entries(samples, plan, samples.start_ns - samples.start_ns.min(axis=0))
    assert found.lateness_ns.tolist() == [100, 111, 90, 108]
    assert found.missed.tolist() == [False, True, False, False]
    known = by_rank_s(samples, found.punctual & np.array([True, True, True, False]))
    assert known == (30e-9, 20e-9, None)
    rotating = planned_ns(replace(case, arrival=ArrivalPattern("rotating", 7)), samples)
    assert rotating.T.tolist() == [[7, 0, 0], [0, 7, 0]] * 2
    assert not planned_ns(replace(case, arrival=TOGETHER), samples).any()


def test_groups_have_a_late_rank_each() -> None:
    (case,) = planned(BLOCK, 4, groups={"stride": 2}, arrival=LATE)
    samples = samples_of(np.zeros((4, 2), dtype=np.int64), np.ones((4, 2), dtype=np.int64))
    assert (planned_ns(case, samples)[:, 0] > 0).tolist() == [False, False, True, True]


@pytest.mark.parametrize(("own", "together", "lateness", "share"), [
    (1.1, 0.1, 1.0, 0), (0.1, 0.1, 1.0, 1), (0.6, 0.1, 1.0, 0.5), (0.1, 0.1, 0.25, 1)])
def test_absorbed_is_what_punctual_ranks_do_not_wait(
    own: float, together: float, lateness: float, share: float,
) -> None:
    assert absorbed_share(own, together, lateness) == pytest.approx(share)


def test_an_absorbed_share_takes_both_intervals_at_their_worst() -> None:
    """Of a delay of 100 us rank 0 waits 40 (30 to 60) less 10 (8 to 13) us; rank 1 is late."""
    case = make_case(0, mode="isolated", collective="broadcast", op=None, root=0)
    late = replace(case, case_id="b", arrival=ArrivalPattern("last", 100_000))
    items = [with_timing(ok(one, 1e-4), arrivals=LateArrivals(
        lateness_s=lateness_s, own_entry_s=own[1], own_entry_low_s=own[0], own_entry_high_s=own[2],
        own_by_rank_s=by_rank_s)) for one, lateness_s, own, by_rank_s in (
            (case, None, (8e-6, 10e-6, 13e-6), (10e-6, 12e-6)),
            (late, 1e-4, (30e-6, 40e-6, 60e-6), (40e-6, None)))]
    found = arrivals_of([*with_absorbed(items)][1])
    assert (found.absorbed_low, found.absorbed_share, found.absorbed_high) == pytest.approx(
        (1 - (60 - 8) / 100, 1 - (40 - 10) / 100, 1 - (30 - 13) / 100))


def reduced(folder: Path, absorbed: float, *, missed: int = 0) -> Results:
    """A broadcast of 10 us: together, and with the last rank late by 100 us, of which rank 0 waits
    what is not ``absorbed``. In ``missed`` samples of a pass it is late by twice as much."""
    together = make_case(0, mode="isolated", collective="broadcast", op=None, root=0,
                         iterations=20, min_iterations=20)
    late = replace(together, case_id="b" * 12, index=1, arrival=ArrivalPattern("last", 100_000))

    def change(rank: int, record: Record) -> tuple[Record]:
        rows = record.samples.rows()
        rows[:, 1] = rows[:, 0] + 10_000
        if record.case_id == late.case_id:
            waited = np.full(len(rows), 100_000)
            waited[len(rows) - missed:] *= 2
            rows[:, 0] += waited * rank
            rows[:, 1] += waited * rank + round(100_000 * (1 - absorbed)) * (1 - rank)
        return (with_rows(record, rows),)

    write_synthetic_run(folder, plan_of([together, late], 2, passes=3), change=change)
    return reduce_folder(folder)


def arrivals_of(item: CaseResult) -> LateArrivals:
    assert item.timing is not None and item.timing.arrivals is not None
    return item.timing.arrivals


@pytest.mark.parametrize("absorbed", [0.0, 0.25, 1.0])
def test_a_late_rank_is_recorded_and_is_no_straggler(tmp_path: Path, absorbed: float) -> None:
    results = reduced(tmp_path, absorbed)
    together, late = results.cases
    assert arrivals_of(together).lateness_s is None
    found = arrivals_of(late)
    assert found.lateness_s == pytest.approx(100e-6) and found.missed_share == 0
    assert found.absorbed_share == pytest.approx(absorbed)
    assert found.absorbed_low == pytest.approx(absorbed) == found.absorbed_high
    assert found.own_by_rank_s == (pytest.approx(10e-6 + (1 - absorbed) * 100e-6), None)
    assert found.late_by_rank_s == (None, pytest.approx(10e-6))
    assert late.timing is not None and late.timing.last_in_s == pytest.approx(10e-6)
    assert found.last_in_low_s == pytest.approx(10e-6) == found.last_in_high_s
    assert late.timing.late_start is None is late.timing.quickest_rank
    assert not {"missed_lateness", "late_starts"} & {*late.timing.quality}
    told = diagnose([Run("run", results, MemorySamples(results))], TopicOptions())
    assert late.case.case_id not in {one.case_id for one in told.checks if one.is_clear}
    (table,) = arrival_tables(results)
    explained = column_lines([table], ["flag delay: ranks", "time = without delay"])
    assert [line.split(":")[0] for line in explained] == [f"column {name}" for name in (
        "delay", "missed", "from last", "own entry", "own together", "absorbed", "95 % CI")]
    assert len([*column_lines([table], ["from last = the time", "95 % CI = of"])]) == 5
    assert len(table.notes) == 2
    assert [row.cells[1] for row in table.groups[0].rows] == ["together", "last:100us"]
    cells = dict(zip((column.name for column in table.columns), table.rows[1].cells, strict=True))
    assert isinstance(cells["own_entry"], WithInterval)
    assert cells["absorbed"] == pytest.approx(
        1 - (cells["own_entry"].value - cells["own_together"]) / cells["lateness"])
    assert case_rows(results)[1]["absorbed_share"] == pytest.approx(absorbed)
    with open_results(tmp_path) as file:
        assert arrivals_of(file.results.cases[1]) == found
    with h5py.File(tmp_path / "results.h5") as stored:
        assert stored["cases/arrival"].asstr()[:].tolist() == ["together", "last:100us"]
        assert stored["cases/absorbed_share"][:].tolist() == [
            pytest.approx(np.nan, nan_ok=True), found.absorbed_share]


@pytest.mark.parametrize("iterations", [7, 10])
def test_ranks_that_are_late_in_turn_count_alike_whatever_the_number_of_samples(
    tmp_path: Path, iterations: int,
) -> None:
    """A late rank 1 costs root 0 of a broadcast nothing, a late root costs rank 1 all of it."""
    together = make_case(0, mode="isolated", collective="broadcast", op=None, root=0,
                         iterations=iterations, min_iterations=iterations)
    late = replace(together, case_id="b" * 12, index=1, arrival=ArrivalPattern("rotating", 100_000))

    def change(rank: int, record: Record) -> tuple[Record]:
        rows = record.samples.rows()
        own = np.full(len(rows), (10_000, 12_000)[rank])
        if record.case_id == late.case_id:
            is_late = np.arange(len(rows)) % 2 == rank
            rows[:, 0] += 100_000 * is_late
            own += 100_000 * (rank == 1) * ~is_late
        rows[:, 1] = rows[:, 0] + own
        return (with_rows(record, rows),)

    write_synthetic_run(tmp_path, plan_of([together, late], 2, passes=3), change=change)
    arrivals = arrivals_of(reduce_folder(tmp_path).cases[1])
    assert arrivals.own_by_rank_s == (pytest.approx(10e-6), pytest.approx(112e-6))
    assert arrivals.own_entry_s == pytest.approx(61e-6)
    assert arrivals.own_entry_together_s == pytest.approx(11e-6)
    assert arrivals.absorbed_share == pytest.approx(0.5)


@pytest.mark.parametrize(("missed", "flagged"), [(4, False), (5, True), (11, True)])
def test_missed_delay_is_flagged_from_a_fifth_of_the_samples_on(
    tmp_path: Path, missed: int, flagged: bool,
) -> None:
    results = reduced(tmp_path, 1.0, missed=missed)
    late, (table,) = results.cases[1], arrival_tables(results)
    assert len(table.notes) == 2 + (missed > 10)  # a - is explained
    assert arrivals_of(late).missed_share == missed / 20
    assert late.timing is not None and ("missed_lateness" in late.timing.quality) is flagged
    assert (arrivals_of(late).absorbed_share is None) is (missed > 10)  # the median is off


def test_a_run_without_late_ranks_has_no_such_table(tmp_path: Path) -> None:
    write_synthetic_run(tmp_path, plan_of([make_case(0, mode="isolated")], 2))
    results = reduce_folder(tmp_path)
    assert not [*arrival_tables(results)] and "arrival" not in case_rows(results)[0]
    with h5py.File(tmp_path / "results.h5") as stored:
        assert not {"arrival", "absorbed_share", "lateness_s"} & {*stored["cases"]}
    assert results.cases[0].timing is not None and results.cases[0].timing.arrivals is None
